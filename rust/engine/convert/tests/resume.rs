//! A run that is stopped, killed or fails anywhere is taken up where its last finished shard ended, and ends as one that
//! was never stopped.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use colibri_store::container::manifest::MANIFEST_NAME;
use colibri_store::durable::fault;

use super::*;

/// Weight files of the checkpoint: steps of one or two shards each.
const FILES: usize = 4;

fn options() -> ConvertOptions {
    ConvertOptions { scale_rule: ScaleRule::AbsMax, workers: 1, ..ConvertOptions::default() }
}

/// Shards that the journal of an unfinished conversion lists.
fn listed(partial: &Path) -> Vec<String> {
    let Ok(text) = fs::read(partial.join(".colibri-convert.json")) else { return Vec::new() };
    let journal: Value = serde_json::from_slice(&text).unwrap();
    journal["shards"].as_array().unwrap().iter().map(|shard| shard["file"].as_str().unwrap().to_owned()).collect()
}

/// Inode and time of change of finished shards: a shard that is written again has others.
fn identities(partial: &Path, shards: &[String]) -> Vec<(u64, i64, i64)> {
    use std::os::unix::fs::MetadataExt;
    let identity = |name: &String| {
        let facts = fs::metadata(partial.join(name)).unwrap();
        (facts.ino(), facts.mtime(), facts.mtime_nsec())
    };
    shards.iter().map(identity).collect()
}

/// Converts in a process of its own that ends, or fails, at the place of this number.
fn converted_apart(home: &Path, place: u64, error: i32) -> bool {
    fs::write(home.join("place"), format!("{place} {error}")).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "convert::tests::resume::inside_a_crash"])
        .current_dir(home)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    fs::remove_file(home.join("place")).unwrap();
    status.success()
}

#[test]
#[ignore = "run by the tests of crashes, in a process of its own"]
fn inside_a_crash() {
    let here = std::env::current_dir().unwrap();
    let Ok(text) = fs::read_to_string(here.join("place")) else { return };
    let (place, error) = text.split_once(' ').unwrap();
    fault::fail_at(place.parse().unwrap(), error.parse().unwrap());
    let outcome = run(&here, &options());
    if let Err(error) = &outcome {
        fs::write(here.join("outcome"), format!("{}\n{}", error.code(), error.fix().unwrap_or_default())).unwrap();
    }
    assert!(outcome.is_ok());
}

/// A home with a checkpoint, and what its conversion is.
fn prepared() -> (TempDir, Vec<(String, Vec<u8>)>) {
    let home = home(&tensors(Stored::Mixed), FILES);
    convert(&home.path().join("source"), &home.path().join("whole"), &options(), &NoWatch).unwrap();
    let whole = contents(&home.path().join("whole"));
    (home, whole)
}

#[test]
fn a_crash_at_any_place_loses_no_finished_shard_cv_06() {
    let (home, whole) = prepared();
    let (out, partial) = (home.path().join("out"), home.path().join("out.partial"));
    let (mut place, mut with_shards) = (0, 0);
    loop {
        let finished = converted_apart(home.path(), place, 0);
        if finished {
            break;
        }
        let shards = if out.exists() { Vec::new() } else { listed(&partial) };
        let before = identities(&partial, &shards);
        if out.exists() && !out.join(".colibri-convert.json").exists() {
            // It ended after the last thing that matters; a lock file may be left.
            let _ = fs::remove_file(out.join(".lock"));
        } else {
            let mut conversion = Conversion::open(&home.path().join("source"), &out, &options()).unwrap();
            let done: usize = conversion.steps().iter().filter(|step| step.done).count();
            for step in 0..conversion.steps().len() {
                conversion.run_step(step, &NoWatch).unwrap();
                if !shards.is_empty() {
                    assert_eq!(identities(&partial, &shards), before, "a finished shard was written again");
                }
            }
            assert!(done <= conversion.steps().len());
            let report = conversion.finish(&NoWatch).unwrap();
            assert!(report.resumed_shards >= shards.len() as u64);
            with_shards += u64::from(report.resumed_shards > 0);
        }
        assert!(contents(&out) == whole, "ended at place {place}");
        fs::remove_dir_all(&out).unwrap();
        place += 1;
    }
    assert!(contents(&out) == whole);
    assert!(place > 60 && with_shards > 30, "{place} places, {with_shards} with finished shards");
}

#[test]
fn crashes_in_a_row_come_to_an_end() {
    let (home, whole) = prepared();
    let mut crashes = 0;
    // Each run gets a little further, since each finishes a shard at least.
    while !converted_apart(home.path(), 60 + crashes % 7, 0) {
        crashes += 1;
        assert!(crashes < 40);
    }
    assert!(crashes > 0 && contents(&home.path().join("out")) == whole);
}

#[test]
fn a_full_disk_says_how_to_go_on_and_keeps_what_is_finished() {
    let (home, whole) = prepared();
    let (mut kept, mut place) = (0, 0);
    loop {
        if converted_apart(home.path(), place, NO_SPACE) {
            break;
        }
        let outcome = fs::read_to_string(home.path().join("outcome")).unwrap();
        assert!(outcome.starts_with("disk_full"), "{place}: {outcome}");
        let partial = home.path().join("out.partial");
        let shards = listed(&partial).len();
        if shards > 0 && !home.path().join("out").exists() {
            kept += 1;
            assert!(outcome.contains("again to go on") && outcome.contains("out.partial"), "{outcome}");
        }
        if shards == 0 && !home.path().join("out").exists() {
            // A shard may be whole and its entry in the journal what failed.
            let whole = |name: &String| name.ends_with(".safetensors") && !name.starts_with('.');
            let kept = !partial.exists() || names(&partial).iter().any(whole);
            assert!(kept, "{place}: nothing was finished, so nothing is left");
        }
        if home.path().join("out").exists() && listed(&home.path().join("out")).is_empty() {
            fs::remove_dir_all(home.path().join("out")).unwrap();
        }
        fs::remove_file(home.path().join("outcome")).unwrap();
        place += 5;
    }
    assert!(kept > 0 && contents(&home.path().join("out")) == whole);
}

/// `ENOSPC`: no space left on the device.
const NO_SPACE: i32 = 28;

#[test]
fn a_process_killed_at_random_moments_ends_as_one_that_was_not() {
    let (home, whole) = prepared();
    let (mut state, mut kills) = (12_345u64, 0u64);
    for _ in 0..12 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        fs::write(home.path().join("place"), format!("{} 0", u64::MAX)).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "convert::tests::resume::inside_a_crash"])
            .current_dir(home.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_micros((state >> 33) % 120_000));
        kills += u64::from(child.try_wait().unwrap().is_none());
        let _ = child.kill();
        let _ = child.wait();
        if home.path().join("out").exists() {
            break;
        }
    }
    fs::remove_file(home.path().join("place")).unwrap();
    let out = home.path().join("out");
    if !out.join("colibri.json").exists() || out.join(".colibri-convert.json").exists() {
        run(home.path(), &options()).unwrap();
    }
    let _ = fs::remove_file(out.join(".lock"));
    assert!(kills > 0 && contents(&out) == whole);
}

/// Stops after the first finished shards; returns the build folder.
fn stopped(home: &Path, options: &ConvertOptions) -> PathBuf {
    let mut conversion = Conversion::open(&home.join("source"), &home.join("out"), options).unwrap();
    conversion.run_step(0, &NoWatch).unwrap();
    drop(conversion);
    home.join("out.partial")
}

#[test]
fn other_parameters_are_refused_and_named_cv_07() {
    let (home, whole) = prepared();
    let partial = stopped(home.path(), &options());
    let before = contents(&partial);
    let others = [
        (ConvertOptions { experts: Format::Int8Row, ..options() }, "--experts was q4g64 and is now q8"),
        (ConvertOptions { dense: Format::Int4Row, ..options() }, "--dense"),
        (ConvertOptions { embeddings: Format::F32, ..options() }, "--embeddings"),
        (ConvertOptions { mtp: Format::Q4G64, ..options() }, "--mtp-format"),
        (ConvertOptions { scale_rule: ScaleRule::Search, ..options() }, "--scale-rule was absmax and is now search"),
        (ConvertOptions { keep_mtp: false, ..options() }, "--no-mtp"),
        (ConvertOptions { repack: true, ..options() }, "--repack"),
    ];
    for (other, named) in others {
        let error = run(home.path(), &other).unwrap_err();
        assert_eq!(error.code(), "convert_parameters_differ");
        assert!(error.why().unwrap().contains(named), "{:?}", error.why());
        assert!(error.fix().unwrap().contains("out.partial"));
        assert!(contents(&partial) == before, "nothing was touched");
    }
    // What changes no byte may differ.
    let report = run(home.path(), &ConvertOptions { workers: 3, verify: true, ..options() }).unwrap();
    assert!(report.resumed_shards > 0 && report.verified_shards == report.shards.len() as u64);
    assert!(contents(&home.path().join("out")) == whole);
}

#[test]
fn a_source_that_changed_is_named() {
    let change = |edit: &dyn Fn(&Path)| {
        let home = indexed_home(&tensors(Stored::Float(Format::Bf16)), FILES);
        let partial = stopped(home.path(), &options());
        edit(&home.path().join("source"));
        let error = run(home.path(), &options()).unwrap_err();
        assert_eq!(error.code(), "convert_source_changed", "{error}");
        assert!(!listed(&partial).is_empty());
        format!("{error}: {}", error.why().unwrap())
    };
    let text = |path: &Path, from: &str, to: &str| {
        let content = fs::read_to_string(path).unwrap();
        assert!(content.contains(from));
        fs::write(path, content.replacen(from, to, 1)).unwrap();
    };
    let what = change(&|source| text(&source.join("config.json"), "2.5", "2.25"));
    assert!(what.contains("config.json"), "{what}");
    let what = change(&|source| text(&source.join("model.safetensors.index.json"), "total_size", "whole_size"));
    assert!(what.contains("index"), "{what}");
    let last = "model-00004-of-00004.safetensors";
    let what = change(&|source| {
        let mut content = fs::read(source.join(last)).unwrap();
        content.push(0);
        fs::write(source.join(last), content).unwrap();
    });
    assert!(what.contains(last) && what.contains("bytes"), "{what}");
    let what = change(&|source| {
        let mut content = fs::read(source.join(last)).unwrap();
        let at = content.windows(4).position(|window| window == b"BF16").unwrap();
        content[at..at + 4].copy_from_slice(b"I16 ");
        fs::write(source.join(last), content).unwrap();
    });
    assert!(what.contains(last) && what.contains("header"), "{what}");
}

#[test]
fn a_stop_keeps_finished_shards_and_says_how_to_go_on() {
    let (home, whole) = prepared();
    let source = home.path().join("source");
    let counter = StopAt { calls: AtomicU64::new(0), at: u64::MAX };
    convert(&source, &home.path().join("other"), &options(), &counter).unwrap();
    let calls = counter.calls.into_inner();
    let mut kept = 0;
    for at in [calls / 3, calls / 2, calls * 3 / 4] {
        let watch = StopAt { calls: AtomicU64::new(0), at };
        match convert(&source, &home.path().join("out"), &options(), &watch) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.code(), "cancelled");
                if home.path().join("out.partial").exists() {
                    kept += 1;
                    assert!(error.fix().unwrap().contains("again to go on"), "{:?}", error.fix());
                }
                run(home.path(), &options()).unwrap();
            }
        }
        assert!(contents(&home.path().join("out")) == whole);
        fs::remove_dir_all(home.path().join("out")).unwrap();
    }
    assert!(kept > 0);
}

#[test]
fn files_may_come_when_they_are_needed_and_go_when_they_are_not() {
    let tensors = tensors(Stored::Fp8(Dtype::F32));
    let home = indexed_home(&tensors, 9);
    let source = home.path().join("source");
    convert(&source, &home.path().join("whole"), &options(), &NoWatch).unwrap();
    let store = home.path().join("store");
    fs::create_dir(&store).unwrap();
    for name in names(&source).iter().filter(|name| name.ends_with(".safetensors")) {
        fs::rename(source.join(name), store.join(name)).unwrap();
    }
    let dry = Conversion::dry_run(&source, &home.path().join("out"), &options()).unwrap();
    assert!(dry.source_bytes > 0 && dry.estimate.unwrap().basis.contains("fetching"));
    let options = ConvertOptions { delete_source: true, verify: true, ..options() };
    let error = convert(&source, &home.path().join("out"), &options, &NoWatch).unwrap_err();
    assert_eq!(error.code(), "model_incomplete");
    let (mut most, mut step) = (0, 0);
    // A new process for each step.
    loop {
        let mut conversion = Conversion::open(&source, &home.path().join("out"), &options).unwrap();
        let steps = conversion.steps().to_vec();
        assert!(steps.iter().take(step).all(|step| step.done) && steps.iter().skip(step).all(|step| !step.done));
        let Some(next) = steps.get(step) else {
            conversion.finish(&NoWatch).unwrap();
            break;
        };
        assert_eq!(conversion.run_step(step, &NoWatch).map_err(|error| error.code()), Err("model_incomplete"));
        for name in next.files.iter().filter(|name| !source.join(name).exists()) {
            fs::copy(store.join(name), source.join(name)).unwrap();
        }
        let there = || names(&source).iter().filter(|name| name.ends_with(".safetensors")).count() as u64;
        most = most.max(there());
        conversion.run_step(step, &NoWatch).unwrap();
        assert!(next.releases.iter().all(|name| !source.join(name).exists()));
        step += 1;
    }
    assert_eq!(most, dry.held.files);
    assert!(most < 9 && step > 4, "{most} files at once, {step} steps");
    assert!(contents(&home.path().join("out")) == contents(&home.path().join("whole")));
    assert!(names(&source).iter().all(|name| !name.ends_with(".safetensors")), "{:?}", names(&source));
}

#[test]
fn a_source_goes_only_after_what_came_of_it_was_read_back() {
    let (home, whole) = prepared();
    let source = home.path().join("source");
    let files = || names(&source).iter().filter(|name| name.ends_with(".safetensors")).count();
    stopped(home.path(), &options());
    let options = ConvertOptions { verify: true, delete_source: true, ..options() };
    let mut conversion = Conversion::open(&source, &home.path().join("out"), &options).unwrap();
    assert_eq!(files(), FILES, "the first shards were not read back");
    for step in 1..conversion.steps().len() {
        conversion.run_step(step, &NoWatch).unwrap();
    }
    assert!((1..FILES).contains(&files()));
    conversion.finish(&NoWatch).unwrap();
    assert_eq!(files(), 0);
    assert!(contents(&home.path().join("out")) == whole);
}

#[test]
fn a_finished_shard_that_is_lost_is_written_again_and_one_that_differs_is_found() {
    let (home, whole) = prepared();
    let partial = stopped(home.path(), &options());
    let lost = listed(&partial).remove(0);
    fs::remove_file(partial.join(&lost)).unwrap();
    fs::write(partial.join("half.safetensors"), "half").unwrap();
    run(home.path(), &options()).unwrap();
    assert!(contents(&home.path().join("out")) == whole);
    fs::remove_dir_all(home.path().join("out")).unwrap();
    let partial = stopped(home.path(), &options());
    let spoiled = partial.join(listed(&partial).remove(0));
    let mut content = fs::read(&spoiled).unwrap();
    *content.last_mut().unwrap() ^= 1;
    fs::write(&spoiled, content).unwrap();
    let checked = ConvertOptions { verify: true, ..options() };
    let error = run(home.path(), &checked).unwrap_err();
    assert!(error.code() == "model_corrupt" && error.to_string().contains("read back"), "{error}");
    // It was forgotten, so that the next run writes it anew.
    run(home.path(), &checked).unwrap();
    assert!(contents(&home.path().join("out")) == whole);
}

#[test]
fn a_journal_that_lists_more_than_the_layout_adds_nothing_to_the_container() {
    let (home, whole) = prepared();
    let partial = stopped(home.path(), &options());
    fs::write(home.path().join("neighbour"), "stays").unwrap();
    let path = partial.join(".colibri-convert.json");
    let mut journal: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let twice = journal["shards"][0].clone();
    let mut elsewhere = twice.clone();
    elsewhere["file"] = json!("../neighbour");
    elsewhere["bytes"] = json!(5);
    journal["shards"].as_array_mut().unwrap().extend([twice, elsewhere]);
    // Sizes of files that nobody converts may be anything.
    for name in ["x", "y"] {
        journal["files"][name] = json!({"bytes": u64::MAX, "header": ""});
    }
    fs::write(&path, journal.to_string()).unwrap();
    let report = run(home.path(), &options()).unwrap();
    assert_eq!(report.shards.iter().filter(|shard| shard.file.contains("neighbour")).count(), 0);
    let unlike_manifest = |contents: Vec<(String, Vec<u8>)>| -> Vec<(String, Vec<u8>)> {
        contents.into_iter().filter(|(name, _)| name != MANIFEST_NAME).collect()
    };
    assert!(unlike_manifest(contents(&home.path().join("out"))) == unlike_manifest(whole));
    assert!(Catalog::open(&home.path().join("out")).is_ok());
}

#[test]
fn a_container_without_a_shard_is_named_with_its_layers_cv_13() {
    let (home, _) = prepared();
    let whole = home.path().join("whole");
    assert!(verify(&whole, &NoWatch).unwrap().is_sound());
    let middle = names(&whole).into_iter().filter(|name| name.starts_with("experts-")).nth(1).unwrap();
    let content = fs::read(whole.join(&middle)).unwrap();
    fs::remove_file(whole.join(&middle)).unwrap();
    let report = verify(&whole, &NoWatch).unwrap();
    assert!(!report.missing_tensors.is_empty() && !report.missing_layers.is_empty(), "{report:?}");
    assert!(report.faults.iter().any(|fault| fault.contains(&middle)), "{report:?}");
    assert!(report.missing_tensors.iter().all(|name| name.contains(".experts.")));
    let mut spoiled = content.clone();
    *spoiled.last_mut().unwrap() ^= 1;
    fs::write(whole.join(&middle), spoiled).unwrap();
    let report = verify(&whole, &NoWatch).unwrap();
    assert!(report.faults.len() == 1 && report.faults[0].contains("not what was written"), "{report:?}");
    fs::write(whole.join(&middle), content).unwrap();
    assert!(verify(&whole, &NoWatch).unwrap().is_sound());
    let stop = StopAt { calls: AtomicU64::new(0), at: 0 };
    assert_eq!(verify(&whole, &stop).unwrap_err().code(), "cancelled");
}
