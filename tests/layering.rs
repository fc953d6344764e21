//! Who may import whom: between the crates, and inside the engine. Reads the import lines.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Crates in order: each may import those before it.
const CRATES: [(&str, &[&str]); 5] = [
    ("kernels", &[]),
    ("store", &["colibri_kernels"]),
    ("grammar", &[]),
    ("engine", &["colibri_kernels", "colibri_store", "colibri_grammar"]),
    ("python", &["colibri_kernels", "colibri_store", "colibri_grammar", "colibri_engine"]),
];

/// Modules of the engine and their tier; a module imports its own tier and the ones below.
const TIERS: [(&str, usize); 23] = [
    ("spec", 0),
    ("names", 0),
    ("config", 0),
    ("error", 0),
    ("observe", 0),
    ("family", 1),
    ("weights", 1),
    ("experts", 1),
    ("kv", 1),
    ("token_grammar", 1),
    ("scratch", 1),
    ("blueprint", 1),
    ("block", 2),
    ("forward", 3),
    ("sample", 4),
    ("session", 5),
    ("model", 6),
    ("convert", 7),
    ("fixture", 7),
    ("inspect", 8),
    ("plan", 9),
    ("doctor", 10),
    ("lib", 11),
];

/// What a family may import of the engine.
const OF_FAMILY: [&str; 3] = ["spec", "names", "family"];

fn rust() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rust")
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// All words that follow `prefix` in a file's code, its comments left out.
fn mentions(path: &Path, prefix: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for (at, _) in line.match_indices(prefix) {
            let word = |letter: &char| letter.is_alphanumeric() || *letter == '_';
            found.push(line[at + prefix.len()..].chars().take_while(word).collect());
        }
    }
    found
}

#[test]
fn crates_import_only_what_lies_below() {
    for (name, allowed) in CRATES {
        let mut files = Vec::new();
        sources(&rust().join(name), &mut files);
        assert!(!files.is_empty(), "{name} has no source");
        for file in files {
            for other in mentions(&file, "colibri_") {
                let other = format!("colibri_{other}");
                let known = CRATES.iter().any(|(name, _)| other == format!("colibri_{name}"));
                assert!(!known || allowed.contains(&other.as_str()), "{} imports {other}", file.display());
            }
        }
    }
}

#[test]
fn modules_of_the_engine_import_only_what_lies_below() {
    let tiers: BTreeMap<_, _> = TIERS.into_iter().collect();
    let root = rust().join("engine");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut checked = 0;
    for file in files {
        let module = file.strip_prefix(&root).unwrap().components().next().unwrap();
        let module = module.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
        let tier = tiers.get(module.as_str()).unwrap_or_else(|| panic!("{module} has no tier"));
        // `tests.rs`, or a file in a folder `tests`: tests may look upwards.
        let inside = file.strip_prefix(&root).unwrap();
        let is_test = inside.components().any(|part| Path::new(&part).file_stem() == Some("tests".as_ref()));
        for other in mentions(&file, "crate::") {
            let Some(theirs) = tiers.get(other.as_str()) else { continue };
            let fine = theirs < tier || other == module || theirs == tier && *tier < 2;
            assert!(fine || is_test, "{} imports {other}", file.display());
            let family_breaks = module == "family" && !is_test && !OF_FAMILY.contains(&other.as_str());
            assert!(!family_breaks, "{} imports {other}", file.display());
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} imports were seen");
}

#[test]
fn unsafe_code_lies_where_it_may() {
    let allowed = ["kernels/arch", "kernels/dispatch", "kernels/buffer", "kernels/pool"];
    let allowed = allowed.iter().chain(&["store/source/map", "store/source/direct", "store/expert/slots"]);
    let allowed: Vec<_> = allowed.map(|path| rust().join(path).display().to_string()).collect();
    let mut files = Vec::new();
    sources(&rust(), &mut files);
    for file in files {
        let shown = file.display().to_string();
        let uses = mentions(&file, "unsafe ").iter().chain(&mentions(&file, "unsafe{")).count();
        assert!(uses == 0 || allowed.iter().any(|path| shown.starts_with(path)), "{shown} has unsafe code");
    }
}
