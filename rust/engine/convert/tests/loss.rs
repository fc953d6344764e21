//! Finished shards may be the only copy of weights whose source files are gone: no run removes them, and no message
//! advises it without saying so.

use std::path::PathBuf;

use super::*;

const JOURNAL: &str = ".colibri-convert.json";

fn options() -> ConvertOptions {
    ConvertOptions { scale_rule: ScaleRule::AbsMax, workers: 1, delete_source: true, ..ConvertOptions::default() }
}

/// A conversion that was stopped after it had removed some of its source; the home and the build folder.
fn half_way(indexed: bool) -> (TempDir, PathBuf) {
    let tensors = tensors(Stored::Float(Format::Bf16));
    let home = if indexed { indexed_home(&tensors, 9) } else { home(&tensors, 9) };
    let mut conversion = Conversion::open(&home.path().join("source"), &home.path().join("out"), &options()).unwrap();
    for step in 0..conversion.steps().len() / 2 {
        conversion.run_step(step, &NoWatch).unwrap();
    }
    drop(conversion);
    let partial = home.path().join("out.partial");
    assert!(weight_files(&home.path().join("source")).len() < 9 && !weight_files(&partial).is_empty());
    (home, partial)
}

fn weight_files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    contents_of(folder)
        .into_iter()
        .filter(|(name, _)| name.ends_with(".safetensors") && !name.starts_with('.'))
        .collect()
}

fn contents_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let there = names(folder).into_iter().filter(|name| folder.join(name).is_file());
    there.map(|name| (name.clone(), fs::read(folder.join(&name)).unwrap())).collect()
}

#[test]
fn shards_without_a_journal_stay_when_their_source_is_gone() {
    for indexed in [true, false] {
        let (home, partial) = half_way(indexed);
        fs::remove_file(partial.join(JOURNAL)).unwrap();
        let before = weight_files(&partial);
        for _ in 0..2 {
            let error = run(home.path(), &options()).unwrap_err();
            assert_eq!(error.code(), "model_incomplete", "{error}");
            assert!(weight_files(&partial) == before, "what cannot be made again stays");
            if indexed {
                assert!(error.to_string().contains("no journal"), "{error}");
                assert!(error.fix().unwrap().contains("only copy"), "{:?}", error.fix());
            }
        }
    }
}

#[test]
fn shards_without_a_journal_are_made_again_when_their_source_is_there() {
    let home = indexed_home(&tensors(Stored::Float(Format::Bf16)), 9);
    let kept = ConvertOptions { delete_source: false, ..options() };
    let mut conversion = Conversion::open(&home.path().join("source"), &home.path().join("out"), &kept).unwrap();
    conversion.run_step(0, &NoWatch).unwrap();
    drop(conversion);
    fs::remove_file(home.path().join("out.partial").join(JOURNAL)).unwrap();
    let report = run(home.path(), &kept).unwrap();
    assert!(report.resumed_shards == 0 && report.notes.iter().any(|note| note.contains("without its journal")));
}

#[test]
fn no_refusal_advises_to_remove_the_only_copy() {
    type Spoil = fn(&Path, &Path) -> ConvertOptions;
    let cases: [(&str, Spoil); 4] = [
        ("convert_parameters_differ", |_, _| ConvertOptions { experts: Format::Int8Row, ..options() }),
        ("convert_source_changed", |source, _| {
            let index = source.join("model.safetensors.index.json");
            fs::write(&index, fs::read_to_string(&index).unwrap() + "\n").unwrap();
            options()
        }),
        ("model_corrupt", |_, partial| {
            fs::write(partial.join(JOURNAL), "{").unwrap();
            options()
        }),
        ("model_unsupported", |_, partial| {
            fs::write(partial.join(JOURNAL), r#"{"version": 99}"#).unwrap();
            options()
        }),
    ];
    for (code, spoil) in cases {
        let (home, partial) = half_way(true);
        let before = weight_files(&partial);
        let error = run(home.path(), &spoil(&home.path().join("source"), &partial)).unwrap_err();
        let fix = error.fix().unwrap();
        assert_eq!(error.code(), code, "{error}");
        assert!(!fix.contains("remove") && fix.contains("only copy") && fix.contains("out.partial"), "{fix}");
        assert!(weight_files(&partial) == before);
    }
}

#[test]
fn a_shard_that_the_journal_does_not_know_stays_until_it_can_be_made_again() {
    let (home, partial) = half_way(true);
    let path = partial.join(JOURNAL);
    let mut journal: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    journal["shards"].as_array_mut().unwrap().clear();
    fs::write(&path, journal.to_string()).unwrap();
    let before = weight_files(&partial);
    assert_eq!(run(home.path(), &options()).unwrap_err().code(), "model_incomplete");
    assert!(weight_files(&partial) == before);
    let again = indexed_home(&tensors(Stored::Float(Format::Bf16)), 9);
    for (name, content) in weight_files(&again.path().join("source")) {
        fs::write(home.path().join("source").join(name), content).unwrap();
    }
    let report = run(home.path(), &options()).unwrap();
    assert_eq!(report.resumed_shards, 0);
    assert!(verify(&home.path().join("out"), &NoWatch).unwrap().is_sound());
}

#[test]
fn a_shard_that_was_away_for_a_while_is_taken_up_again() {
    let (home, partial) = half_way(true);
    let (name, _) = weight_files(&partial).remove(0);
    fs::rename(partial.join(&name), home.path().join("away")).unwrap();
    assert_eq!(run(home.path(), &options()).unwrap_err().code(), "model_incomplete");
    fs::rename(home.path().join("away"), partial.join(&name)).unwrap();
    run(home.path(), &options()).unwrap();
    assert!(Catalog::open(&home.path().join("out")).is_ok());
}

#[test]
fn a_source_that_cannot_be_removed_is_refused_before_the_work() {
    use std::os::unix::fs::PermissionsExt;
    let home = indexed_home(&tensors(Stored::Float(Format::Bf16)), 2);
    let source = home.path().join("source");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o555)).unwrap();
    let refused = run(home.path(), &options());
    fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).unwrap();
    // Whoever may do everything is not stopped by permissions.
    if let Err(error) = refused {
        assert_eq!(error.code(), "output_not_writable");
        assert!(error.fix().unwrap().contains("--delete-source"), "{:?}", error.fix());
        assert!(!home.path().join("out.partial").exists() && weight_files(&source).len() == 2);
    }
}

#[test]
fn an_unfinished_conversion_is_no_model_and_says_what_it_is() {
    let (home, partial) = half_way(true);
    for error in [
        crate::inspect::inspect(&partial).unwrap_err(),
        crate::plan::plan(&partial, &crate::EngineConfig::default(), crate::plan::PlanProbe::default()).unwrap_err(),
    ] {
        assert_eq!(error.code(), "model_incomplete");
        assert!(error.to_string().contains("unfinished conversion"), "{error}");
        assert!(error.fix().unwrap().contains("same convert command"), "{:?}", error.fix());
    }
    let error = crate::inspect::inspect(&home.path().join("out")).unwrap_err();
    assert_eq!(error.code(), "model_not_found");
    assert!(error.why().unwrap().contains("out.partial"), "{:?}", error.why());
}

#[test]
fn scales_that_cannot_be_run_are_inspected_and_refused_by_a_plan_as_by_loading() {
    for scale_type in [Dtype::F8E8m0, Dtype::Bf16] {
        let home = indexed_home(&tensors(Stored::Fp8(scale_type)), 2);
        let source = home.path().join("source");
        let config = crate::EngineConfig::default();
        assert!(crate::inspect::inspect(&source).is_ok());
        let planned = crate::plan::plan(&source, &config, crate::plan::PlanProbe::default()).unwrap_err();
        let loaded = crate::Model::plan(&source, &config).unwrap_err();
        assert_eq!((planned.code(), loaded.code()), ("model_unsupported", "model_unsupported"), "{planned}");
        assert_eq!(planned.fix(), loaded.fix());
    }
}

#[test]
fn a_tensor_that_only_the_index_lacks_is_not_called_missing() {
    let home = indexed_home(&tensors(Stored::Float(Format::Bf16)), 2);
    let path = home.path().join("source/model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    index["weight_map"].as_object_mut().unwrap().remove("lm_head.weight").unwrap();
    fs::write(&path, index.to_string()).unwrap();
    let error = run(home.path(), &ConvertOptions { delete_source: false, ..options() }).unwrap_err();
    assert_eq!(error.code(), "model_corrupt");
    assert!(error.to_string().contains("the index does not name") && error.to_string().contains("lm_head"), "{error}");
    assert!(error.fix().unwrap().contains("index"), "{:?}", error.fix());
}
