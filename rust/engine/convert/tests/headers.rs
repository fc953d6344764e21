//! Conversions that are planned from headers, before the weight files come, a few at a time.

use super::stored::public;
use super::*;

/// Weight files of the source.
const FILES: usize = 5;

fn repack() -> ConvertOptions {
    ConvertOptions { repack: true, delete_source: true, ..ConvertOptions::default() }
}

/// A public container without an index, in `source`.
fn container() -> TempDir {
    let format = |slot: &TensorSlot| match class_of(slot) {
        StorageClass::Kept => Format::F32,
        StorageClass::Experts => Format::Int4Grouped { group: 32 },
        _ => Format::Int8Row,
    };
    home(&public(&format), FILES)
}

fn header_of(file: &Path) -> Vec<u8> {
    let content = fs::read(file).unwrap();
    let length = u64::from_le_bytes(content[..8].try_into().unwrap());
    content[..8 + usize::try_from(length).unwrap()].to_vec()
}

/// A folder `source` that has of each weight file of another only the header.
fn headers_of(whole: &Path) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("source");
    fs::create_dir(&source).unwrap();
    for name in names(whole) {
        if name.ends_with(".safetensors") {
            fs::write(source.join(format!("{name}.header")), header_of(&whole.join(&name))).unwrap();
        } else {
            fs::copy(whole.join(&name), source.join(&name)).unwrap();
        }
    }
    home
}

#[test]
fn a_repack_is_planned_from_headers_and_runs_as_the_files_come() {
    let whole = container();
    let published = whole.path().join("source");
    let options = ConvertOptions { source_name: Some("source".to_owned()), ..repack() };
    let expected = {
        let kept = ConvertOptions { delete_source: false, ..options.clone() };
        convert(&published, &whole.path().join("out"), &kept, &NoWatch).unwrap();
        contents(&whole.path().join("out"))
    };
    let home = headers_of(&published);
    let (source, out) = (home.path().join("source"), home.path().join("out"));
    let dry = Conversion::dry_run(&source, &out, &options).unwrap();
    let bytes = |folder: &Path| -> u64 {
        let weights = names(folder).into_iter().filter(|name| name.ends_with(".safetensors"));
        weights.map(|name| fs::metadata(folder.join(name)).unwrap().len()).sum()
    };
    assert_eq!((dry.source_bytes, dry.bytes), (bytes(&published), bytes(&whole.path().join("out"))));
    assert!(dry.held.bytes > 0 && dry.held.bytes < dry.source_bytes);
    let count = Conversion::open(&source, &out, &options).unwrap().steps().len();
    assert_eq!(count, FILES);
    for step in 0..count {
        // Each time anew, as after a stop.
        let mut conversion = Conversion::open(&source, &out, &options).unwrap();
        let files = conversion.steps()[step].files.clone();
        if files.iter().any(|name| !source.join(name).exists()) {
            let missing = conversion.run_step(step, &NoWatch).unwrap_err();
            assert_eq!(missing.code(), "model_incomplete", "{missing}");
        }
        for name in files {
            fs::copy(published.join(&name), source.join(&name)).unwrap();
        }
        conversion.run_step(step, &NoWatch).unwrap();
    }
    Conversion::open(&source, &out, &options).unwrap().finish(&NoWatch).unwrap();
    assert!(contents(&out) == expected);
    assert!(names(&source).iter().all(|name| !name.ends_with(".safetensors")), "each file went when it was used");
}

#[test]
fn a_file_must_have_the_header_that_was_planned_with() {
    let whole = container();
    let published = whole.path().join("source");
    let home = headers_of(&published);
    let (source, out) = (home.path().join("source"), home.path().join("out"));
    let mut conversion = Conversion::open(&source, &out, &repack()).unwrap();
    let name = conversion.steps()[0].files[0].clone();
    let mut content = fs::read(published.join(&name)).unwrap();
    let space = header_of(&published.join(&name)).iter().rposition(|byte| *byte == b'}').unwrap() + 1;
    content[space] = b'\n';
    fs::write(source.join(&name), content).unwrap();
    let changed = conversion.run_step(0, &NoWatch).unwrap_err();
    assert!(changed.to_string().contains(&name) && changed.why().unwrap().contains("header"), "{changed}");
}

#[test]
fn headers_that_are_cut_short_or_missing_are_refused_by_name() {
    let whole = container();
    let published = whole.path().join("source");
    let home = headers_of(&published);
    let (source, out) = (home.path().join("source"), home.path().join("out"));
    let stub = source.join(names(&source).into_iter().find(|name| name.ends_with(".header")).unwrap());
    let header = fs::read(&stub).unwrap();
    for content in [&header[..header.len() - 1], &header[..5], &[]] {
        fs::write(&stub, content).unwrap();
        let error = Conversion::open(&source, &out, &repack()).err().unwrap();
        assert!(error.code() == "model_corrupt" && error.to_string().contains(".header"), "{error}");
    }
    fs::remove_file(&stub).unwrap();
    // The names announce how many files there are.
    assert_eq!(Conversion::open(&source, &out, &repack()).err().unwrap().code(), "model_incomplete");
    assert!(!out.exists() && !home.path().join("out.partial").exists());
    // Headers are no model: nothing else takes them for weights.
    assert_eq!(Catalog::open(&source).unwrap_err().code(), "model_not_found");
}
