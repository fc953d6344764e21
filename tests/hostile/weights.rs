//! Tensors that are there and are not what the model needs.

use colibri_kernels::Format;
use colibri_store::{Catalog, GroupSize, StoreError};

use crate::{Folder, assert_says, file_bytes, refusal};

/// Name, dtype, shape and bytes of a tensor of zeros.
pub(crate) type Described<'a> = (&'a str, &'a str, &'a [u64], usize);

/// A model of these tensors with metadata entries.
pub(crate) fn model(metadata: &[(&str, &str)], tensors: &[Described<'_>]) -> Folder {
    let folder = Folder::new();
    write_shard(&folder, "model.safetensors", metadata, tensors);
    folder
}

/// Adds a shard of these tensors with metadata entries.
pub(crate) fn write_shard(folder: &Folder, file: &str, metadata: &[(&str, &str)], tensors: &[Described<'_>]) {
    let mut entries = Vec::new();
    let metadata: Vec<String> =
        metadata.iter().map(|(key, value)| format!("{}:{}", quoted(key), quoted(value))).collect();
    entries.push(format!(r#""__metadata__":{{{}}}"#, metadata.join(",")));
    let mut end = 0;
    for (name, dtype, shape, bytes) in tensors {
        let start = end;
        end += bytes;
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
    }
    folder.write(file, &file_bytes(format!("{{{}}}", entries.join(",")).as_bytes(), &vec![0; end]));
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The format of the matrix `w` of a container that holds no other.
pub(crate) fn weight(folder: &Folder, rows: usize, cols: usize) -> Result<Format, StoreError> {
    let catalog = folder.open()?;
    let group = catalog.group_size(std::iter::once(("w", rows, cols)))?;
    Ok(catalog.weight("w", rows, cols, group)?.format)
}

#[test]
fn se_03_byte_counts_of_no_format_are_refused_with_expected_and_found() {
    for (codes, scales) in [(127, 16), (129, 16), (0, 16), (128, 12), (128, 20), (128, 0)] {
        let folder = model(&[], &[("w", "U8", &[codes as u64], codes), ("w.qs", "F32", &[scales as u64 / 4], scales)]);
        let error = weight(&folder, 4, 64).unwrap_err();
        let (code, text) = refusal(&error);
        assert_eq!(code, "model_corrupt");
        assert_says(&text, &["`w`", "128 + 16", &format!("{codes} + {scales} bytes")]);
    }
    // Scales of 15 or 17 bytes are no F32 tensor: the header itself is refused.
    for scales in [15, 17] {
        let folder = model(&[], &[("w", "U8", &[128], 128), ("w.qs", "F32", &[4], scales)]);
        assert_says(&folder.refusal().1, &["`w.qs`", "16 bytes", &format!("{scales} bytes")]);
    }
    let folder = model(&[], &[("w", "U8", &[128], 128), ("w.qs", "F16", &[8], 16)]);
    assert_says(&refusal(&weight(&folder, 4, 64).unwrap_err()).1, &["scales of type F32", "F16"]);
    let folder = model(&[], &[("w", "U8", &[128], 128)]);
    let (code, text) = refusal(&weight(&folder, 4, 64).unwrap_err());
    assert_eq!(code, "model_incomplete");
    assert_says(&text, &["`w.qs`"]);
}

#[test]
fn se_01_a_quantised_weight_smaller_than_the_model_needs_is_refused() {
    let folder = model(&[], &[("w", "U8", &[128], 128), ("w.qs", "F32", &[4], 16)]);
    assert_eq!(weight(&folder, 4, 64).unwrap(), Format::Int4Row);
    assert_eq!(weight(&folder, 4, 32).unwrap(), Format::Int8Row);
    for (rows, cols) in [(8, 64), (4, 6400), (usize::MAX, usize::MAX), (0, 64), (4, 0)] {
        assert_eq!(weight(&folder, rows, cols).unwrap_err().code(), "model_corrupt", "{rows} {cols}");
    }
}

#[test]
fn se_07_shapes_of_global_tensors_are_checked() {
    let folder = model(
        &[],
        &[
            ("norm", "F32", &[63], 252),
            ("bias", "F32", &[9], 36),
            ("embed", "BF16", &[99, 64], 12_672),
            ("head", "F16", &[64, 100], 12_800),
            ("square", "F32", &[1, 8], 32),
        ],
    );
    let catalog: Catalog = folder.open().unwrap();
    let float = |name: &str, rows, cols| catalog.weight(name, rows, cols, GroupSize::NONE);
    let cases = [
        (catalog.vector("norm", 64), "`norm`", "[64]", "[63]"),
        (catalog.vector("bias", 8), "`bias`", "[8]", "[9]"),
        (float("embed", 100, 64), "`embed`", "[100, 64]", "[99, 64]"),
        (float("head", 100, 64), "`head`", "[100, 64]", "[64, 100]"),
        (catalog.vector("square", 8), "`square`", "[8]", "[1, 8]"),
        (float("norm", 63, 1), "`norm`", "[63, 1]", "[63]"),
    ];
    for (result, name, wanted, found) in cases {
        let (code, text) = refusal(&result.unwrap_err());
        assert_eq!(code, "model_corrupt");
        assert_says(&text, &[name, wanted, found, "model.safetensors"]);
    }
    assert_eq!(float("embed", 99, 64).unwrap().format, Format::Bf16);
    assert_eq!(float("head", 64, 100).unwrap().format, Format::F16);
    let norm = catalog.vector("norm", 63).unwrap();
    assert_eq!((norm.format, norm.rows, norm.cols, norm.bytes()), (Format::F32, 1, 63, 252));
}

#[test]
fn types_that_cannot_be_read_are_refused_by_name() {
    for (dtype, bytes) in [("F8_E5M2", 256), ("F8_E4M3FNUZ", 256), ("I32", 1024), ("F64", 2048), ("BOOL", 256)] {
        let folder = model(&[], &[("w", dtype, &[4, 64], bytes), ("w.qs", "F32", &[4], 16)]);
        let (code, text) = refusal(&weight(&folder, 4, 64).unwrap_err());
        assert_eq!(code, "model_unsupported");
        assert_says(&text, &["`w`", dtype]);
    }
    for dtype in ["U8", "I8", "F8_E4M3"] {
        let folder = model(&[], &[("w", dtype, &[8], 8)]);
        let (code, text) = refusal(&folder.open().unwrap().vector("w", 8).unwrap_err());
        assert_eq!(code, "model_corrupt");
        assert_says(&text, &["`w`", "F32, BF16 or F16 [8]", dtype]);
    }
}

#[test]
fn a_weight_without_elements_is_refused() {
    for (dtype, element) in [("F32", 4), ("BF16", 2), ("F8_E4M3", 1), ("U8", 1)] {
        for (rows, cols) in [(0u64, 4u64), (4, 0), (0, 0)] {
            let folder = model(&[], &[("w", dtype, &[rows, cols], 0), ("other", dtype, &[1], element)]);
            let error = weight(&folder, rows as usize, cols as usize).unwrap_err();
            assert_eq!(error.code(), "model_corrupt", "{error}");
            assert_says(&refusal(&error).1, &["`w`", "model.safetensors", &format!("[{rows}, {cols}]")]);
        }
    }
    let folder = model(&[], &[("w", "F32", &[0], 0)]);
    assert_eq!(folder.open().unwrap().vector("w", 0).unwrap_err().code(), "model_corrupt");
}

#[test]
fn stamps_choose_between_formats_and_may_not_contradict() {
    let stamped = |stamp: &str| {
        let stamps = format!(r#"{{"w":"{stamp}"}}"#);
        model(&[("colibri.fmt", &stamps)], &[("w", "U8", &[128], 128), ("w.qs", "F32", &[4], 16)])
    };
    assert_eq!(weight(&stamped("int4-row"), 4, 64).unwrap(), Format::Int4Row);
    // One group in each row has the values of one scale in each row.
    assert_eq!(weight(&stamped("int4-grouped"), 4, 64).unwrap(), Format::Int4Row);
    for (stamp, code) in [("int8-row", "model_corrupt"), ("f32", "model_corrupt"), ("int7", "model_unsupported")] {
        let (found, text) = refusal(&weight(&stamped(stamp), 4, 64).unwrap_err());
        assert_eq!(found, code);
        assert_says(&text, &["`w`", stamp]);
    }
    let float = model(&[("colibri.fmt", r#"{"w":"bf16"}"#)], &[("w", "F32", &[4, 64], 1024)]);
    assert_says(&refusal(&weight(&float, 4, 64).unwrap_err()).1, &["f32", "`bf16`"]);
    let float = model(&[("colibri.fmt", r#"{"w":"f32"}"#)], &[("w", "F32", &[4, 64], 1024)]);
    assert_eq!(weight(&float, 4, 64).unwrap(), Format::F32);
    assert_eq!(float.open().unwrap().stamp("w"), Some("f32"));
    let both = model(&[], &[("w", "F32", &[4, 64], 1024), ("w.qs", "F32", &[4], 16)]);
    assert_eq!(weight(&both, 4, 64).unwrap_err().code(), "model_corrupt");
    for text in ["5", "[]", "{", r#"{"w":1}"#, r#"{"w":"f32","w":"f32"}"#] {
        let folder = model(&[("colibri.fmt", text)], &[("w", "F32", &[1], 4)]);
        let (code, said) = folder.refusal();
        assert_eq!(code, "model_corrupt");
        assert_says(&said, &["colibri.fmt", "model.safetensors"]);
    }
}
