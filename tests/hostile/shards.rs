//! Shards that are missing, are no weights, or lie elsewhere.

use crate::{Folder, assert_says, file_bytes, refusal};

/// An index that places `tensors[i]` in `shards[i]`.
fn index(places: &[(&str, &str)]) -> String {
    let entries: Vec<String> = places.iter().map(|(tensor, file)| format!(r#""{tensor}":"{file}""#)).collect();
    format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, entries.join(","))
}

#[test]
fn lo_01_missing_shards_are_counted_and_named_with_what_they_hold() {
    const NAMES: [&str; 5] = [
        "model-00001-of-00005.safetensors",
        "model-00002-of-00005.safetensors",
        "model-00003-of-00005.safetensors",
        "model-00004-of-00005.safetensors",
        "model-00005-of-00005.safetensors",
    ];
    for with_index in [true, false] {
        for gone in [0, 2, 4] {
            let folder = Folder::new();
            for (i, name) in NAMES.iter().enumerate().filter(|(i, _)| *i != gone) {
                folder.shard(name, &[&format!("t{i}")]);
            }
            if with_index {
                let places: Vec<(String, &str)> =
                    NAMES.iter().enumerate().map(|(i, n)| (format!("t{i}"), *n)).collect();
                let places: Vec<(&str, &str)> = places.iter().map(|(t, n)| (t.as_str(), *n)).collect();
                folder.write("model.safetensors.index.json", index(&places).as_bytes());
            }
            folder.write("x.incomplete", b"");
            let (code, text) = folder.refusal();
            assert_eq!(code, "model_incomplete");
            assert_says(&text, &["1 of 5 shards is missing", NAMES[gone], "fetch only", "1 *.incomplete"]);
            if with_index {
                assert_says(&text, &["1 tensors lie there", &format!("`t{gone}`")]);
            }
        }
    }
}

#[test]
fn lo_01_without_an_announced_count_a_missing_tensor_tells_which_shards_were_found() {
    for (gone, part) in [(2, "without out-00002"), (0, "no out-00000"), (4, "after the last ones may be missing")] {
        let folder = Folder::new();
        for i in (0..5).filter(|i| *i != gone) {
            folder.shard(&format!("out-{i:05}.safetensors"), &[&format!("t{i}")]);
        }
        let error = folder.open().unwrap().vector(&format!("t{gone}"), 1).unwrap_err();
        let (code, text) = refusal(&error);
        assert_eq!(code, "model_incomplete");
        assert_says(&text, &[&format!("`t{gone}`"), "4 shards", part, "fetch"]);
    }
}

#[test]
fn lo_03_what_is_no_weights_is_named() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2\
                   ca24d17e2393\nsize 12345678901\n";
    let cases: [(&[u8], &str, &str); 5] = [
        (pointer.as_bytes(), "Git-LFS pointer", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "HTML page", "fetch"),
        (br#"{"error":"Repository not found"}"#, "JSON text", "fetch"),
        (b"PK\x03\x04aaaaaaaaaaaaaaaaaaaaaaaa", "zip archive", "convert"),
        (b"GGUF\x03\0\0\0aaaaaaaaaaaaaaaaaaaa", "GGUF", "safetensors"),
    ];
    for (bytes, what, fix) in cases {
        let folder = Folder::new();
        folder.write("model.safetensors", bytes);
        let (code, text) = folder.refusal();
        assert_eq!(code, "model_corrupt");
        assert_says(&text, &["model.safetensors is ", what, fix]);
    }
}

#[test]
fn a_folder_without_weights_says_what_is_there() {
    let folder = Folder::new();
    let (code, text) = folder.refusal();
    assert_eq!(code, "model_not_found");
    assert_says(&text, &["no *.safetensors"]);
    folder.write(".cache/huggingface/download/a.incomplete", b"");
    folder.write("b.incomplete", b"");
    assert_says(&folder.refusal().1, &["2 *.incomplete", "resume"]);
    let error = colibri_store::Catalog::open(&folder.path().join("absent")).unwrap_err();
    assert_eq!(error.code(), "model_not_found");
}

#[test]
fn se_12_an_index_names_only_plain_files_of_the_folder() {
    for name in ["../../etc/passwd", "/etc/passwd", "a\\u0000b", "sub/../x", "sub/x", "", ".", "..", "a\\\\b"] {
        let folder = Folder::new();
        folder.shard("x", &["w"]);
        folder.write("sub/x", b"");
        folder.write("model.safetensors.index.json", index(&[("w", name)]).as_bytes());
        let (code, text) = folder.refusal();
        assert_eq!(code, "model_corrupt", "{name}");
        assert_says(&text, &["not a plain file name"]);
    }
}

#[cfg(unix)]
#[test]
fn se_12_links_that_leave_the_folder_are_refused_and_those_of_a_cache_are_not() {
    use std::os::unix::fs::symlink;
    let outside = Folder::new();
    outside.shard("secret.safetensors", &["w"]);

    let folder = Folder::new();
    symlink(outside.path().join("secret.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let (code, text) = folder.refusal();
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["link that leaves", "secret.safetensors"]);

    // A link inside of the folder is fine, one that leads nowhere is a missing file.
    let folder = Folder::new();
    folder.shard("real", &["w"]);
    symlink("real", folder.path().join("model.safetensors")).unwrap();
    assert!(folder.open().is_ok());
    symlink("nowhere", folder.path().join("other.safetensors")).unwrap();
    assert_eq!(folder.refusal().0, "model_incomplete");

    // The cache of the Hugging Face tools: a snapshot is links to blobs of the same repository.
    let cache = Folder::new();
    cache.shard("models--org--name/blobs/abc", &["w"]);
    cache.shard("models--org--other/blobs/def", &["v"]);
    let snapshot = cache.path().join("models--org--name/snapshots/rev");
    std::fs::create_dir_all(&snapshot).unwrap();
    symlink("../../blobs/abc", snapshot.join("model.safetensors")).unwrap();
    assert!(colibri_store::Catalog::open(&snapshot).is_ok());
    // The folder itself may be reached by a link.
    symlink(&snapshot, cache.path().join("mine")).unwrap();
    assert!(colibri_store::Catalog::open(&cache.path().join("mine")).is_ok());
    symlink("../../../models--org--other/blobs/def", snapshot.join("extra.safetensors")).unwrap();
    assert!(colibri_store::Catalog::open(&snapshot).is_err());

    // An index or a manifest that is a link out of the folder is refused as well.
    for name in ["model.safetensors.index.json", "colibri.json"] {
        let folder = Folder::new();
        folder.shard("model.safetensors", &["w"]);
        let target = outside.write(name, index(&[("w", "model.safetensors")]).as_bytes());
        symlink(target, folder.path().join(name)).unwrap();
        assert_says(&folder.refusal().1, &["link that leaves"]);
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_without_waiting() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    assert_says(&folder.refusal().1, &["is not a file"]);
    let socket = Folder::new();
    let _listener = std::os::unix::net::UnixListener::bind(socket.path().join("model.safetensors")).unwrap();
    assert_says(&socket.refusal().1, &["is not a file"]);
    assert!(colibri_store::Catalog::open(std::path::Path::new("/dev/zero")).is_err());
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let folder = Folder::new();
    folder.shard("a.safetensors", &["x", "y"]);
    folder.shard("b.safetensors", &["z"]);
    let places = [("x", "a.safetensors"), ("y", "b.safetensors"), ("z", "b.safetensors"), ("q", "b.safetensors")];
    folder.write("model.safetensors.index.json", index(&places).as_bytes());
    let (code, text) = folder.refusal();
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["`b.safetensors` does not hold 2 tensors", "`q`"]);

    let good = [("x", "a.safetensors"), ("y", "a.safetensors"), ("z", "b.safetensors")];
    folder.write("model.safetensors.index.json", index(&good).as_bytes());
    assert_eq!(folder.open().unwrap().tensors().len(), 3);
    // Only the files of the index belong to the model.
    folder.write("stray.safetensors", b"not weights");
    assert!(folder.open().is_ok());
}

#[test]
fn malformed_indexes_are_refused() {
    let texts: [&str; 9] = [
        "",
        "[]",
        "{}",
        r#"{"weight_map":5}"#,
        r#"{"weight_map":{}}"#,
        r#"{"weight_map":{"w":5}}"#,
        r#"{"weight_map":{"w":"a","w":"b"}}"#,
        r#"{"weight_map":{},"weight_map":{}}"#,
        r#"{"weight_map":{"w":"model.safetensors"}} x"#,
    ];
    for text in texts {
        let folder = Folder::new();
        folder.shard("model.safetensors", &["w"]);
        folder.write("model.safetensors.index.json", text.as_bytes());
        let (code, said) = folder.refusal();
        assert_eq!(code, "model_corrupt", "{text}");
        assert_says(&said, &["index"]);
    }
}

#[test]
fn a_tensor_in_two_shards_is_refused_and_pads_are_ignored() {
    let folder = Folder::new();
    folder.shard("a.safetensors", &["x", "__pad__.0.0"]);
    folder.shard("b.safetensors", &["y", "__pad__.1.0"]);
    let catalog = folder.open().unwrap();
    assert_eq!(catalog.tensors().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["x", "y"]);
    folder.shard("c.safetensors", &["x"]);
    let (code, text) = folder.refusal();
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["`x`", "a.safetensors", "c.safetensors"]);
}

#[test]
fn a_container_of_ours_lists_its_shards_with_their_lengths() {
    let folder = Folder::new();
    folder.shard("dense-00001.safetensors", &["w"]);
    let length = std::fs::metadata(folder.path().join("dense-00001.safetensors")).unwrap().len();
    let manifest = |file: &str, bytes: u64| {
        format!(
            r#"{{"format":"colibri","format_version":1,"writer":"colibri","source":{{"name":"m","model_type":"t","bytes":1}},
               "quantisation":[],"scale_rule":"search","multi_token_prediction":false,"files":[],
               "shards":[{{"file":"{file}","bytes":{bytes},"sha256":""}}]}}"#
        )
    };
    folder.write("colibri.json", manifest("dense-00001.safetensors", length).as_bytes());
    assert!(folder.open().unwrap().manifest().is_some());
    folder.write("colibri.json", manifest("dense-00001.safetensors", length + 1).as_bytes());
    assert_says(&folder.refusal().1, &["dense-00001.safetensors", "colibri.json says"]);
    folder.write("colibri.json", manifest("dense-00002.safetensors", length).as_bytes());
    let (code, text) = folder.refusal();
    assert_eq!(code, "model_incomplete");
    assert_says(&text, &["1 of 1 shards is missing", "dense-00002.safetensors", "colibri.json"]);
    folder.write("colibri.json", manifest("../dense-00001.safetensors", length).as_bytes());
    assert_says(&folder.refusal().1, &["not a plain file name"]);
    folder.write("colibri.json", b"{");
    assert_eq!(folder.refusal().0, "model_corrupt");
}

#[test]
fn a_container_of_ours_lists_what_travels_with_the_weights() {
    let folder = Folder::new();
    folder.shard("dense-00001.safetensors", &["w"]);
    let length = std::fs::metadata(folder.path().join("dense-00001.safetensors")).unwrap().len();
    let list = |files: &str, format: &str| {
        let manifest = format!(
            r#"{{"format":"colibri","format_version":1,"writer":"colibri","source":{{"name":"m","model_type":"t","bytes":1}},
               "quantisation":[{{"class":"dense","format":"{format}"}}],"scale_rule":"search",
               "multi_token_prediction":false,"files":[{files}],
               "shards":[{{"file":"dense-00001.safetensors","bytes":{length},"sha256":""}}]}}"#
        );
        folder.write("colibri.json", manifest.as_bytes());
    };
    let file = |name: &str, bytes: u64| format!(r#"{{"file":"{name}","bytes":{bytes},"sha256":""}}"#);
    folder.write("tokenizer.json", b"{}");
    list(&file("tokenizer.json", 2), "q8");
    assert!(folder.open().is_ok());
    // People edit templates and sampling defaults: another length is no fault.
    list(&file("tokenizer.json", 3), "q8");
    assert!(folder.open().is_ok());
    list(&[file("tokenizer.json", 2), file("LICENSE", 5)].join(","), "q8");
    let (code, text) = folder.refusal();
    assert_eq!(code, "model_incomplete");
    assert_says(&text, &["`LICENSE` is missing", "colibri.json lists it"]);
    for name in ["../x", "/etc/passwd", "sub/x", "", "a\\\\b"] {
        list(&file(name, 1), "q8");
        let (code, text) = folder.refusal();
        assert_eq!(code, "model_corrupt", "{name}");
        assert_says(&text, &["not a plain file name"]);
    }
    list("", "q9");
    let (code, text) = folder.refusal();
    assert_eq!(code, "model_unsupported");
    assert_says(&text, &["storage format `q9`"]);
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    list(&file("folder", 1), "q8");
    assert_says(&folder.refusal().1, &["`folder` is not a file"]);
}

#[test]
fn a_single_file_can_be_opened_by_its_own_path() {
    let folder = Folder::new();
    folder.shard("weights.safetensors", &["w"]);
    let path = folder.path().join("weights.safetensors");
    assert_eq!(colibri_store::Catalog::open(&path).unwrap().tensors().len(), 1);
    folder.write("weights.safetensors", &file_bytes(b"{ ", &[]));
    assert_eq!(colibri_store::Catalog::open(&path).unwrap_err().code(), "model_corrupt");
}
