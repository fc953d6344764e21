//! What is refused, by name, and what is left then: nothing.

use super::*;

#[test]
fn a_stop_before_the_first_shard_is_finished_leaves_nothing() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let source = home.path().join("source");
    for at in [0, 1] {
        let watch = StopAt { calls: AtomicU64::new(0), at };
        let error = convert(&source, &home.path().join("a/b/out"), &ConvertOptions::default(), &watch).unwrap_err();
        assert_eq!(error.code(), "cancelled");
        assert_eq!(names(home.path()), ["source"]);
    }
}

#[test]
fn destinations_that_cannot_be_written_are_named() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let source = home.path().join("source");
    let file = home.path().join("file");
    fs::write(&file, "mine").unwrap();
    for destination in [file.clone(), file.join("below"), source.clone()] {
        for dry_run in [false, true] {
            let options = ConvertOptions::default();
            let result = match dry_run {
                true => Conversion::dry_run(&source, &destination, &options),
                false => convert(&source, &destination, &options, &NoWatch),
            };
            if dry_run && destination == file.join("below") && result.is_ok() {
                continue;
            }
            let error = result.unwrap_err();
            assert_eq!(error.code(), "output_not_writable", "{error}");
            assert!(error.to_string().contains(&*destination.to_string_lossy()), "{error}");
        }
    }
    assert_eq!(names(home.path()), ["file", "source"]);
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn a_write_that_fails_part_of_the_way_is_named_and_leaves_nothing() {
    // A limit on file sizes, which only a process of its own can have.
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let this = std::env::current_exe().unwrap();
    let script =
        "trap '' XFSZ; ulimit -f 32; exec \"$0\" --ignored --exact convert::tests::refusals::inside_a_file_limit";
    let status = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(&this)
        .current_dir(home.path())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fs::read_to_string(home.path().join("outcome")).unwrap(), "output_not_writable");
    assert_eq!(names(home.path()), ["outcome", "source"]);
}

#[test]
#[ignore = "run by the test of a failing write, in a process with a limit on file sizes"]
fn inside_a_file_limit() {
    let here = std::env::current_dir().unwrap();
    if here.join("source").is_dir() {
        let outcome = run(&here, &ConvertOptions::default()).map_or_else(|error| error.code(), |_| "converted");
        fs::write(here.join("outcome"), outcome).unwrap();
    }
}

#[test]
fn a_live_run_is_not_disturbed_and_what_is_not_ours_is_not_touched() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let (source, out) = (home.path().join("source"), home.path().join("out"));
    let running = Conversion::open(&source, &out, &ConvertOptions::default()).unwrap();
    let error = run(home.path(), &ConvertOptions::default()).unwrap_err();
    assert_eq!(error.code(), "output_not_writable");
    assert!(error.to_string().contains("another conversion is writing"), "{error}");
    drop(running);
    assert_eq!(names(home.path()), ["source"]);
    fs::create_dir(home.path().join("out.partial")).unwrap();
    fs::write(home.path().join("out.partial/mine"), "dear").unwrap();
    assert_eq!(run(home.path(), &ConvertOptions::default()).unwrap_err().code(), "output_not_writable");
    assert_eq!(names(&home.path().join("out.partial")), ["mine"]);
}

#[test]
fn a_second_run_into_a_finished_container_changes_nothing_cv_01() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    run(home.path(), &ConvertOptions::default()).unwrap();
    let before = contents(&home.path().join("out"));
    for keep_mtp in [true, false] {
        let error = run(home.path(), &ConvertOptions { keep_mtp, ..ConvertOptions::default() }).unwrap_err();
        assert!(error.code() == "output_not_writable" && error.to_string().contains("not empty"), "{error}");
    }
    assert!(contents(&home.path().join("out")) == before);
    assert_eq!(names(home.path()), ["out", "source"]);
}

#[test]
fn a_destination_whose_name_is_no_text_is_written_and_reported() {
    use std::os::unix::ffi::OsStrExt;
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let out = home.path().join(std::ffi::OsStr::from_bytes(b"out\xff"));
    let report = convert(&home.path().join("source"), &out, &ConvertOptions::default(), &NoWatch).unwrap();
    assert!(serde_json::to_string(&report).unwrap().contains("out\u{fffd}"));
    assert!(Catalog::open(&out).is_ok());
}

/// Converts a checkpoint that must be refused; nothing may be left.
fn refused(tensors: &[Tensor]) -> EngineError {
    let home = home(tensors, 1);
    let error = run(home.path(), &ConvertOptions::default()).unwrap_err();
    assert_eq!(names(home.path()), ["source"]);
    error
}

#[test]
fn tensors_that_are_strange_missing_or_misshapen_are_named() {
    let mut strange = tensors(Stored::Float(Format::F32));
    strange[3].name = "model.layers.0.self_attn.surprise.weight".to_owned();
    let error = refused(&strange);
    assert_eq!(error.code(), "model_unsupported");
    assert!(error.to_string().contains("surprise"), "{error}");

    let mut missing = tensors(Stored::Float(Format::F32));
    let removed = missing.remove(5).name;
    let error = refused(&missing);
    assert_eq!(error.code(), "model_incomplete");
    assert!(error.to_string().contains(&removed), "{error}");

    let mut misshapen = tensors(Stored::Float(Format::F32));
    misshapen[0].shape.reverse();
    let error = refused(&misshapen);
    assert_eq!(error.code(), "model_corrupt");
    assert!(error.to_string().contains(&misshapen[0].name), "{error}");
}

#[test]
fn copies_that_the_model_does_not_need_are_left_out_and_listed() {
    let mut extra = tensors(Stored::Float(Format::F32));
    let copy = "model.layers.2.shared_head.head.weight";
    let embedding = &extra[0];
    let (shape, data) = (embedding.shape.clone(), embedding.data.clone());
    extra.push(Tensor { name: copy.to_owned(), shape, dtype: Dtype::F32, data });
    let home = home(&extra, 1);
    assert_eq!(run(home.path(), &ConvertOptions::default()).unwrap().unused, [copy]);
    assert!(Catalog::open(&home.path().join("out")).unwrap().get(copy).is_none());
}

#[test]
fn the_stored_head_of_a_tied_model_is_left_out() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let mut tied = config();
    tied["tie_word_embeddings"] = json!(true);
    fs::write(home.path().join("source/config.json"), tied.to_string()).unwrap();
    let report = run(home.path(), &ConvertOptions::default()).unwrap();
    assert_eq!(report.unused, ["lm_head.weight"]);
    assert!(report.classes.iter().all(|class| class.class != "head"));
}

#[test]
fn a_bf16_tensor_of_an_unknown_name_is_no_float_of_twice_the_size_cv_04() {
    let mut unknown = tensors(Stored::Float(Format::Bf16));
    unknown.push(Tensor {
        name: "model.extra.weight".to_owned(),
        shape: vec![2],
        dtype: Dtype::Bf16,
        data: vec![0; 4],
    });
    let error = refused(&unknown);
    assert!(error.code() == "model_unsupported" && error.to_string().contains("model.extra.weight"), "{error}");
    // The same from an index alone, before any weight file is there.
    let home = indexed_home(&unknown, 3);
    let source = home.path().join("source");
    for file in names(&source).iter().filter(|name| name.ends_with(".safetensors")) {
        fs::remove_file(source.join(file)).unwrap();
    }
    let error =
        Conversion::open(&source, &home.path().join("out"), &ConvertOptions::default()).map(|_| ()).unwrap_err();
    assert!(error.code() == "model_unsupported" && error.to_string().contains("model.extra.weight"), "{error}");
    assert_eq!(names(home.path()), ["source"]);
}

#[test]
fn scales_that_are_missing_alone_or_not_numbers_are_named_cv_09() {
    let fp8 = || tensors(Stored::Fp8(Dtype::F8E8m0));
    let at = |tensors: &[Tensor]| tensors.iter().position(|tensor| tensor.name.ends_with("_scale_inv")).unwrap();

    let mut missing = fp8();
    let name = missing.remove(at(&fp8())).name;
    let error = refused(&missing);
    assert!(error.code() == "model_incomplete" && error.to_string().contains(&name), "{error}");

    let mut alone = tensors(Stored::Float(Format::F32));
    let name = format!("{}_scale_inv", alone[4].name);
    alone.push(Tensor { name: name.clone(), shape: vec![1, 1], dtype: Dtype::F32, data: vec![0; 4] });
    let error = refused(&alone);
    assert!(error.code() == "model_corrupt" && error.to_string().contains(&name), "{error}");

    let mut wrong = fp8();
    let index = at(&wrong);
    (wrong[index].shape, wrong[index].data) = (vec![3, 5], vec![120; 15]);
    assert_eq!(refused(&wrong).code(), "model_corrupt");

    let mut not_a_number = fp8();
    not_a_number[index].data[0] = 255;
    let error = refused(&not_a_number);
    assert!(error.code() == "model_corrupt" && error.to_string().contains("NaN"), "{error}");

    for nan in [0x7f, 0xff] {
        let mut codes = fp8();
        codes[index - 1].data[70] = nan;
        let error = refused(&codes);
        assert!(error.code() == "non_finite" && error.to_string().contains(&codes[index - 1].name), "{error}");
    }
}

#[test]
fn quantised_and_converted_sources_are_refused_by_name() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    run(home.path(), &ConvertOptions::default()).unwrap();
    let again = home.path().join("again");
    for repack in [false, true] {
        let options = ConvertOptions { repack, ..ConvertOptions::default() };
        let error = convert(&home.path().join("out"), &again, &options, &NoWatch).unwrap_err();
        assert!(error.code() == "model_unsupported" && error.to_string().contains("container already"), "{error}");
    }
    fs::remove_file(home.path().join("out/colibri.json")).unwrap();
    let error = convert(&home.path().join("out"), &again, &ConvertOptions::default(), &NoWatch).unwrap_err();
    assert!(error.code() == "model_unsupported" && error.to_string().contains("quantised already"), "{error}");
    assert!(error.fix().unwrap().contains("--repack"));
    assert!(!again.exists());
}

#[test]
fn a_weight_that_is_not_finite_is_named_with_its_place() {
    for (index, bad) in [(0, f32::NAN), (1, f32::INFINITY), (30, f32::NEG_INFINITY)] {
        let mut broken = tensors(Stored::Float(Format::F32));
        let cols = *broken[index].shape.last().unwrap() as usize;
        let place = broken[index].data.len() / 4 - 1;
        broken[index].data[4 * place..].copy_from_slice(&bad.to_le_bytes());
        let error = refused(&broken);
        assert_eq!(error.code(), "non_finite");
        let text = error.to_string();
        assert!(text.contains(&broken[index].name), "{text}");
        assert!(error.why().unwrap().contains("source"), "the folder is named");
        assert!(text.contains(&format!("row {}, column {}", place / cols, place % cols)), "{text}");
    }
}

#[test]
fn folders_without_a_model_and_formats_that_are_not_written_are_refused() {
    let home = home(&tensors(Stored::Float(Format::F32)), 1);
    let options = ConvertOptions::default();
    let out = home.path().join("out");
    let error = convert(&home.path().join("nowhere"), &out, &options, &NoWatch).unwrap_err();
    assert_eq!(error.code(), "model_not_found");
    let error = convert(&home.path().join("source/config.json"), &out, &options, &NoWatch).unwrap_err();
    assert_eq!(error.code(), "model_not_found");
    for experts in [Format::Bf16, Format::Int4Grouped { group: 32 }] {
        let error = run(home.path(), &ConvertOptions { experts, ..ConvertOptions::default() }).unwrap_err();
        assert!(error.code() == "invalid_value" && error.to_string().contains("q4row"), "{error}");
    }
    fs::remove_file(home.path().join("source/config.json")).unwrap();
    let error = run(home.path(), &options).unwrap_err();
    assert_eq!(error.code(), "model_not_found");
    assert!(error.why().unwrap().contains("config.json"), "{error}");
    assert_eq!(names(home.path()), ["source"]);
}
