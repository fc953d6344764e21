//! Every input of the committed corpus of every fuzz target, run once; docs/fuzzing.md.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;

#[path = "fuzz/targets.rs"]
#[allow(unreachable_pub, reason = "public to the programs of the fuzz crate")]
mod targets;

use targets::TARGETS;

/// Inputs and bytes that the corpora of all targets may have together.
const MOST: (usize, u64) = (300, 300_000);

fn corpus(target: &str) -> Vec<std::path::PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries = std::fs::read_dir(folder).expect("a corpus folder for each target");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

fn replay(target: &str) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).expect("a line in the table");
    let files = corpus(target);
    assert!(files.len() >= 8, "{target} has {} inputs", files.len());
    for file in files {
        let bytes = std::fs::read(&file).expect("an input");
        let outcome = std::panic::catch_unwind(|| run(&bytes));
        assert!(outcome.is_ok(), "{} breaks a promise; the panic above says which", file.display());
    }
    run(&[]);
}

#[test]
fn headers() {
    replay("header");
}

#[test]
fn manifests_and_indices() {
    replay("manifest_and_index");
}

#[test]
fn catalogs() {
    replay("catalog");
}

#[test]
fn configurations() {
    replay("config");
}

#[test]
fn journals() {
    replay("journal");
}

#[test]
fn grammars() {
    replay("grammar");
}

#[test]
fn schemas_and_tools() {
    replay("schema");
}

#[test]
fn matchers() {
    replay("matcher");
}

#[test]
fn the_table_the_programs_and_the_corpora_name_the_same_targets() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let stems = |place: &str| -> Vec<String> {
        let entries = std::fs::read_dir(folder.join(place)).expect("a folder");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    let mut table: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    table.sort_unstable();
    assert_eq!(stems("bins"), table);
    assert_eq!(stems("corpus"), table);
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("the manifest of the fuzz crate");
    let source = std::fs::read_to_string(file!())
        .or_else(|_| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz_replay.rs")));
    let source = source.expect("this file");
    for name in table {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is no program");
        assert!(source.contains(&format!("replay(\"{name}\")")), "{name} is not replayed");
    }
}

#[test]
fn the_corpora_stay_small() {
    let files: Vec<_> = TARGETS.iter().flat_map(|(name, _)| corpus(name)).collect();
    let bytes: u64 = files.iter().map(|file| std::fs::metadata(file).expect("an input").len()).sum();
    assert!(files.len() <= MOST.0 && bytes <= MOST.1, "{} inputs of {bytes} bytes", files.len());
}
