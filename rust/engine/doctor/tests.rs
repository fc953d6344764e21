//! Healthy and damaged models: all faults at once, layers by number, digests of every origin, and the watcher.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use colibri_store::container::manifest::{FORMAT, FORMAT_VERSION, FileDigest, Manifest, SourceModel};
use colibri_store::digest::sha256_file;

use super::*;
use crate::config::{Control, NoWatch, Phase};
use crate::fixture::Fixture;

const ALL: [&str; 8] = [
    "machine.cpu",
    "machine.memory",
    "machine.swap",
    "model.files",
    "model.headers",
    "model.tensors",
    "storage.read",
    "model.payload",
];

/// A checkpoint of three shards.
fn model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Fixture { shards: 3, ..Fixture::default() }.write(folder.path()).unwrap();
    folder
}

fn shards(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "safetensors"))
        .collect();
    found.sort();
    found
}

fn run(folder: &Path, deep: bool) -> DoctorReport {
    let report = doctor(Some(folder), &DoctorOptions { deep, ..DoctorOptions::default() }, &NoWatch).unwrap();
    let ids: Vec<_> = report.checks.iter().map(|check| check.id).collect();
    assert_eq!(ids, ALL);
    for check in &report.checks {
        assert_eq!(check.fix.is_none(), check.status == Status::Ok, "{check:?}");
    }
    let count = |status| report.checks.iter().filter(|check| check.status == status).count();
    assert_eq!((report.failures, report.warnings), (count(Status::Fail), count(Status::Warn)));
    report
}

fn check<'a>(report: &'a DoctorReport, id: &str) -> &'a Check {
    report.checks.iter().find(|check| check.id == id).unwrap()
}

fn status(report: &DoctorReport, id: &str) -> Status {
    check(report, id).status
}

fn digest(path: &Path) -> String {
    sha256_file(path, &mut |_| true).unwrap()
}

#[test]
fn a_whole_model_has_no_failure_and_a_machine_can_be_checked_alone() {
    let folder = model();
    let report = run(folder.path(), false);
    assert_eq!(report.failures, 0, "{report:?}");
    assert_eq!(status(&report, "model.payload"), Status::Skip);
    assert!(check(&report, "machine.memory").text.contains("this one takes"), "{report:?}");
    let alone = doctor(None, &DoctorOptions::default(), &NoWatch).unwrap();
    assert_eq!(alone.checks.iter().map(|check| check.id).collect::<Vec<_>>(), ALL[..3]);
    let value = serde_json::to_value(&alone).unwrap();
    assert_eq!((&value["version"], &value["path"]), (&serde_json::json!(1), &serde_json::Value::Null));
    let engine = EngineConfig { kernels: "abacus".to_owned(), ..EngineConfig::default() };
    let strange = doctor(None, &DoctorOptions { deep: false, engine }, &NoWatch).unwrap();
    assert!(strange.failures == 1 && check(&strange, "machine.cpu").text.contains("abacus"), "{strange:?}");
}

#[test]
fn cv_13_a_missing_shard_is_named_with_the_layers_that_it_takes() {
    let folder = model();
    let gone = shards(folder.path()).remove(1);
    std::fs::remove_file(&gone).unwrap();
    let report = run(folder.path(), false);
    let name = gone.file_name().unwrap().to_str().unwrap();
    let files = check(&report, "model.files");
    assert!(files.status == Status::Fail && files.details[0].contains(name), "{files:?}");
    assert_eq!((status(&report, "model.headers"), status(&report, "storage.read")), (Status::Ok, Status::Ok));
    let tensors = check(&report, "model.tensors");
    assert!(tensors.status == Status::Fail && tensors.text.contains("missing: layers "), "{tensors:?}");
    // Without an index nobody names the shard, but its tensors are missed all the same.
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    for (number, path) in shards(folder.path()).into_iter().enumerate() {
        std::fs::rename(path, folder.path().join(format!("out-{number:05}.safetensors"))).unwrap();
    }
    let report = run(folder.path(), false);
    assert_eq!(status(&report, "model.files"), Status::Ok);
    assert!(check(&report, "model.tensors").text.contains("missing: layers "), "{report:?}");
}

#[test]
fn a_broken_shard_of_a_series_is_there_and_is_not_called_missing() {
    let folder = model();
    let index = folder.path().join("model.safetensors.index.json");
    let files = shards(folder.path());
    let series: Vec<PathBuf> =
        (1..=3).map(|number| folder.path().join(format!("model-{number:05}-of-00003.safetensors"))).collect();
    let _ = std::fs::remove_file(index);
    for (from, to) in files.iter().zip(&series) {
        std::fs::rename(from, to).unwrap();
    }
    for broken in [&b""[..], b"<html>not found</html>"] {
        std::fs::write(&series[1], broken).unwrap();
        let report = run(folder.path(), false);
        let found = check(&report, "model.files");
        assert!(found.text.starts_with("3 weight files") && found.text.contains("1 that cannot be read"), "{found:?}");
        assert_eq!(status(&report, "model.headers"), Status::Fail);
        let tensors = check(&report, "model.tensors").text.clone();
        assert!(tensors.contains("`model-00002-of-00003.safetensors` cannot be read"), "{tensors}");
        assert!(!tensors.contains("without model-") && !tensors.contains("of-00000"), "{tensors}");
    }
}

#[test]
fn ux_10_unreadable_and_damaged_files_are_all_named_and_other_checks_go_on() {
    let folder = model();
    let files = shards(folder.path());
    std::fs::write(&files[0], b"<html>not found</html>").unwrap();
    std::fs::remove_file(&files[2]).unwrap();
    std::fs::create_dir(&files[2]).unwrap();
    let report = run(folder.path(), true);
    let headers = check(&report, "model.headers");
    assert!(headers.status == Status::Fail && headers.details.len() >= 2, "{headers:?}");
    for path in [&files[0], &files[2]] {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(headers.details.iter().any(|line| line.contains(name)), "{headers:?}");
    }
    assert_eq!((status(&report, "storage.read"), status(&report, "machine.cpu")), (Status::Ok, Status::Ok));

    // A drive that fails: the error in words and the next step.
    let error = std::io::Error::from_raw_os_error(5);
    let failed = StoreError::read_failed(Path::new("/m/out-00044.safetensors"), 4096, 1 << 20, &error, 3);
    let line = Check::faulty("model.payload", Line::of(&failed), "");
    assert!(line.text.contains("out-00044.safetensors") && line.text.contains("EIO (Input/output error)"), "{line:?}");
    assert!(line.fix.unwrap().contains("smartctl"));
}

#[test]
fn a_folder_without_a_model_and_a_hostile_configuration_are_lines_of_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let report = run(folder.path(), false);
    assert_eq!((status(&report, "model.files"), status(&report, "model.payload")), (Status::Fail, Status::Skip));
    let folder = model();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "glm_moe_dsa", "vocab_size": -1}"#).unwrap();
    let report = run(folder.path(), false);
    assert_eq!((status(&report, "model.headers"), status(&report, "model.tensors")), (Status::Ok, Status::Fail));
    assert!(check(&report, "model.tensors").text.contains("must be"), "{report:?}");
}

#[test]
fn a_model_that_does_not_fit_fails_the_memory_check_with_the_ways_out() {
    let folder = model();
    let engine = EngineConfig { ram: colibri_store::RamLimit::Bytes(1000), ..EngineConfig::default() };
    let report = doctor(Some(folder.path()), &DoctorOptions { deep: false, engine }, &NoWatch).unwrap();
    let memory = check(&report, "machine.memory");
    assert!(memory.status == Status::Fail && memory.fix.as_ref().unwrap().contains("--ram"), "{memory:?}");
}

#[test]
fn digests_of_a_manifest_are_compared() {
    let folder = model();
    let listed = |path: &Path| FileDigest {
        file: path.file_name().unwrap().to_str().unwrap().to_owned(),
        bytes: path.metadata().unwrap().len(),
        sha256: digest(path),
    };
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    let manifest = Manifest {
        format: FORMAT.to_owned(),
        format_version: FORMAT_VERSION,
        writer: "colibri 0".to_owned(),
        source: SourceModel { name: "x".to_owned(), model_type: "glm_moe_dsa".to_owned(), bytes: 1 },
        quantisation: Vec::new(),
        scale_rule: "search".to_owned(),
        multi_token_prediction: true,
        shards: shards(folder.path()).iter().map(|path| listed(path)).collect(),
        files: vec![listed(&folder.path().join("config.json"))],
    };
    std::fs::write(folder.path().join("colibri.json"), manifest.to_json().unwrap()).unwrap();
    let payload = |report: &DoctorReport| check(report, "model.payload").clone();
    let whole = payload(&run(folder.path(), true));
    assert!(whole.status == Status::Ok && whole.text.contains("4 equal their digests"), "{whole:?}");
    // An edited configuration is worth a word; one changed bit of a weight is a failure.
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text + "\n").unwrap();
    assert_eq!(payload(&run(folder.path(), true)).status, Status::Warn);
    let shard = shards(folder.path()).remove(2);
    let mut bytes = std::fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let broken = payload(&run(folder.path(), true));
    let name = shard.file_name().unwrap().to_str().unwrap();
    assert!(broken.status == Status::Fail && broken.text.contains(name), "{broken:?}");
    assert!(run(folder.path(), false).failures == 0, "only a deep check reads the payload");
}

#[test]
fn digests_of_a_pull_are_compared() {
    let folder = model();
    let files = shards(folder.path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let record = |digests: [String; 3]| {
        let of_files: serde_json::Map<String, serde_json::Value> =
            files.iter().zip(digests).map(|(path, digest)| (name(path), digest.into())).collect();
        let record = serde_json::json!({
            "version": 1, "repository": "org/name", "revision": "main", "commit": "0".repeat(40), "files": of_files
        });
        std::fs::write(folder.path().join(".colibri-pull.json"), record.to_string()).unwrap();
    };
    let [first, second, third] = [&files[0], &files[1], &files[2]].map(|path| digest(path));
    // A small file is named by a digest of another kind.
    record([first.clone(), second.clone(), "c".repeat(40)]);
    let whole = run(folder.path(), true);
    let payload = check(&whole, "model.payload");
    assert!(payload.status == Status::Ok && payload.text.contains("2 equal their digests; 1 have none"), "{payload:?}");
    record([first.clone(), "0".repeat(64), third]);
    let report = run(folder.path(), true);
    let payload = check(&report, "model.payload");
    assert!(payload.status == Status::Fail && payload.text.contains(&name(&files[1])), "{payload:?}");
    std::fs::write(folder.path().join(".colibri-pull.json"), r#"{"files": [1]}"#).unwrap();
    assert_eq!(status(&run(folder.path(), true), "model.payload"), Status::Skip);
}

#[test]
fn digests_of_hub_downloads_are_found_in_both_of_their_places() {
    // A local folder: metadata beside the files.
    let folder = model();
    let none = run(folder.path(), true);
    assert_eq!(status(&none, "model.payload"), Status::Skip);
    assert!(check(&none, "model.payload").text.contains("read without an error"), "{none:?}");
    let metadata = folder.path().join(".cache/huggingface/download");
    std::fs::create_dir_all(&metadata).unwrap();
    let files = shards(folder.path());
    let note = |path: &Path, tag: &str| {
        let name = format!("{}.metadata", path.file_name().unwrap().to_str().unwrap());
        std::fs::write(metadata.join(name), format!("{}\n{tag}\n1700000000.0\n", "a".repeat(40))).unwrap();
    };
    note(&files[0], &digest(&files[0]));
    note(&files[1], &"b".repeat(40));
    let some = run(folder.path(), true);
    let payload = check(&some, "model.payload");
    assert!(payload.status == Status::Ok && payload.text.contains("1 equal their digests; 2 have none"), "{payload:?}");
    note(&files[2], &"c".repeat(64));
    assert_eq!(status(&run(folder.path(), true), "model.payload"), Status::Fail);

    // The cache: a snapshot of links to blobs that are named by their digests.
    let cache = tempfile::tempdir().unwrap();
    let repository = cache.path().join("models--org--name");
    let (blobs, snapshot) = (repository.join("blobs"), repository.join("snapshots/0123"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::copy(folder.path().join("config.json"), snapshot.join("config.json")).unwrap();
    for path in &files {
        let blob = blobs.join(digest(path));
        std::fs::copy(path, &blob).unwrap();
        std::os::unix::fs::symlink(&blob, snapshot.join(path.file_name().unwrap())).unwrap();
    }
    let whole = run(&snapshot, true);
    assert!(check(&whole, "model.payload").text.contains("3 equal their digests"), "{whole:?}");
}

#[test]
fn a_deep_check_reports_progress_and_stops_when_it_is_told_to() {
    struct Follow {
        last: AtomicU64,
        stop: bool,
    }
    impl Watch for Follow {
        fn progress(&self, phase: Phase, done: u64, total: u64) -> Control {
            assert!(phase == Phase::Verify && done <= total);
            let before = self.last.swap(done, Ordering::Relaxed);
            assert!(before <= done);
            if self.stop { Control::Stop } else { Control::Continue }
        }
    }
    let folder = model();
    let total: u64 = shards(folder.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
    let options = DoctorOptions { deep: true, ..DoctorOptions::default() };
    let follow = Follow { last: AtomicU64::new(0), stop: false };
    doctor(Some(folder.path()), &options, &follow).unwrap();
    assert_eq!(follow.last.into_inner(), total);
    let stop = Follow { last: AtomicU64::new(0), stop: true };
    assert_eq!(doctor(Some(folder.path()), &options, &stop).unwrap_err().code(), "cancelled");
}
