//! Headers that lie, are cut, or are no JSON.

use crate::{Folder, assert_says, file_bytes};

#[test]
fn se_01_a_shape_that_contradicts_its_bytes_is_refused_with_both_numbers() {
    let (code, text) =
        Folder::single(r#"{"w":{"dtype":"F32","shape":[1000],"data_offsets":[0,16]}}"#, &[0; 16]).refusal();
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["model.safetensors", "`w`", "4,000 bytes", "16 bytes"]);
    let (_, text) = Folder::single(r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,16]}}"#, &[0; 16]).refusal();
    assert_says(&text, &["`w`", "4 bytes", "16 bytes"]);
    let (_, text) = Folder::single(r#"{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#, &[0; 2]).refusal();
    assert_says(&text, &["`w`", "whole bytes"]);
}

#[test]
fn se_04_text_that_is_no_json_object_is_refused() {
    let good = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert!(Folder::single(good, &[0; 4]).open().is_ok());
    assert!(Folder::single(&format!("{good}   \n"), &[0; 4]).open().is_ok(), "padding may follow");
    let utf16: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let headers: [&[u8]; 10] = [
        br#"{a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        br#"{"a":{"dtype":"F3"#,
        br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#,
        b"{ ",
        br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} x"#,
        br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}{}"#,
        &utf16,
        b"\xff\xfe{}",
        br#"{"\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        b"\0\0\0\0",
    ];
    for header in headers {
        let folder = Folder::new();
        folder.write("model.safetensors", &file_bytes(header, &[0; 4]));
        let (code, text) = folder.refusal();
        assert_eq!(code, "model_corrupt", "{text}");
        assert_says(&text, &["model.safetensors"]);
    }
}

#[test]
fn se_09_a_length_field_never_leads_to_an_allocation_beyond_the_file() {
    let header = br#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
    let with_length = |length: u64| {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(header);
        bytes
    };
    let room = header.len() as u64;
    for length in [u64::MAX, room + 1, 0, 1, 1 << 40, i64::MAX as u64] {
        let folder = Folder::new();
        folder.write("model.safetensors", &with_length(length));
        let (code, text) = folder.refusal();
        assert_eq!(code, "model_corrupt");
        assert_says(&text, &["not a safetensors file", "header"]);
    }
    let folder = Folder::new();
    folder.write("model.safetensors", &with_length(room));
    assert_eq!(folder.open().unwrap().tensors().len(), 1);
    for short in [&[0u8; 7][..], &[], &[0; 8]] {
        let folder = Folder::new();
        folder.write("model.safetensors", short);
        assert_eq!(folder.refusal().0, "model_corrupt");
    }
}

#[test]
fn se_10_odd_kinds_are_one_sort_of_error_and_name_the_tensor() {
    let entry = |offsets: &str| format!(r#"{{"w":{{"dtype":"F32","shape":[1],"data_offsets":{offsets}}}}}"#);
    let mut cases: Vec<(String, &str)> = vec![
        ("[]".into(), "header"),
        (r#""x""#.into(), "header"),
        ("5 ".into(), "header"),
        ("null".into(), "header"),
        (r#"{"w":5}"#.into(), "`w`"),
        (r#"{"w":[]}"#.into(), "`w`"),
        (r#"{"w":{}}"#.into(), "`w`"),
        (r#"{"w":{"dtype":"F12","shape":[1],"data_offsets":[0,4]}}"#.into(), "`F12`"),
        (r#"{"w":{"dtype":7,"shape":[1],"data_offsets":[0,4]}}"#.into(), "`w`"),
        (r#"{"w":{"dtype":"F32","shape":1,"data_offsets":[0,4]}}"#.into(), "`w`"),
        (r#"{"w":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}"#.into(), "`w`"),
        (r#"{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#.into(), "`w`"),
        (r#"{"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#.into(), "8 dimensions"),
        (r#"{"w":{"dtype":"F32","shape":[1]}}"#.into(), "data_offsets is missing"),
        (r#"{"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#.into(), "twice"),
        (r#"{"__metadata__":5}"#.into(), "__metadata__"),
        (r#"{"__metadata__":{"a":5}}"#.into(), "__metadata__"),
        (r#"{"__metadata__":{"a":"b","a":"c"}}"#.into(), "twice"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.into(), "twice"),
    ];
    for offsets in ["[4,0]", "[-4,0]", "[0.0,4.0]", r#"["0","4"]"#, "[0]", "[]", "[0,4,8]", "[0,1e19]", "null", "4"] {
        cases.push((entry(offsets), "`w`"));
    }
    for (header, part) in cases {
        let (code, text) = Folder::single(&header, &[0; 4]).refusal();
        assert_eq!(code, "model_corrupt", "{header}");
        assert_says(&text, &[part, "model.safetensors"]);
    }
    let deep = format!(r#"{{"w":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(Folder::single(&deep, &[]).refusal().0, "model_corrupt");
    let deep = format!(r#"{{"w":{{"x":{}{}}}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(Folder::single(&deep, &[]).refusal().0, "model_corrupt");
}

#[test]
fn se_13_offsets_that_wrap_are_refused() {
    let cases = [
        ("[3]", "[18446744073709551600,18446744073709551612]"),
        ("[0]", "[9223372036854775808,9223372036854775808]"),
        ("[1]", "[18446744073709551612,18446744073709551616]"),
        ("[1]", "[99999999999999999999999,4]"),
        ("[4611686018427387904,4]", "[0,0]"),
        ("[18446744073709551615,18446744073709551615,0]", "[0,0]"),
        ("[4294967296,4294967296]", "[0,0]"),
    ];
    for (shape, offsets) in cases {
        let header = format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#);
        let (code, text) = Folder::single(&header, &[]).refusal();
        assert_eq!(code, "model_corrupt");
        assert_says(&text, &["`w`"]);
    }
}

#[test]
fn lo_06_one_bad_tensor_of_three_fails_the_load_and_is_named() {
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
        "second":{"dtype":"U8","shape":[4000],"data_offsets":[4,4004]},
        "c":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
    let (code, text) = Folder::single(header, &[0; 8]).refusal();
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["`second`"]);
}

#[test]
fn a_truncated_file_says_its_size_and_the_size_it_needs() {
    let header =
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
    let (code, text) = Folder::single(header, &[0; 5]).refusal();
    assert_eq!(code, "model_corrupt");
    let (has, needs) = (8 + header.len() + 5, 8 + header.len() + 8);
    assert_says(&text, &[&format!("is {has} bytes; its header needs {needs}"), "`b`", "cut short", "fetch"]);
}

#[test]
fn overlaps_holes_trailing_bytes_and_repeats_are_refused() {
    let pair = |second: &str, start: u64, end: u64| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},
                "{second}":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}}}"#,
            end - start
        )
    };
    let cases = [
        (pair("b", 2, 8), 8, "overlaps"),
        (pair("b", 0, 8), 8, "overlaps"),
        (pair("b", 6, 8), 8, "hole"),
        (pair("b", 4, 8), 9, "1 bytes after the last tensor"),
        (pair("a", 4, 8), 8, "one tensor of this name"),
    ];
    for (header, length, part) in cases {
        let (code, text) = Folder::single(&header, &vec![0; length]).refusal();
        assert_eq!(code, "model_corrupt");
        assert_says(&text, &[part]);
    }
    assert!(Folder::single(&pair("b", 4, 8), &[0; 8]).open().is_ok());
    // Empty tensors may lie anywhere between the others.
    let empty = r#"{"e":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    assert_eq!(Folder::single(empty, &[0; 4]).open().unwrap().tensors().len(), 2);
}

#[test]
fn names_cannot_drive_a_terminal_and_are_cut() {
    let header = r#"{"\u001b[2J\u202e":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}"#;
    let (_, text) = Folder::single(header, &[0; 8]).refusal();
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
    let long = format!(r#"{{"{}":{{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}}}"#, "n".repeat(1_000_000));
    assert!(Folder::single(&long, &[0; 8]).refusal().1.len() < 2000);
}

/// Bytes that this thread has read from files, and the calls it took.
#[cfg(target_os = "linux")]
fn reads() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    let count = |key: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().parse().unwrap()
    };
    (count("rchar:"), count("syscr:"))
}

/// What bounds the time of opening is work: each byte of the header is read once, in few calls, and no byte of the data,
/// 8.5 GB that lie in a hole of the file.
#[test]
fn lo_04_very_many_tensors_load_and_a_header_beyond_the_cap_is_refused_by_its_size() {
    const COUNT: u64 = 130_000;
    const EACH: u64 = 1 << 16;
    let entries: Vec<String> = (0..COUNT)
        .map(|i| {
            let name = format!("model.layers.{}.mlp.experts.{}.gate_proj.weight.{i}", i / 768, i % 256);
            let (start, end) = (i * EACH, (i + 1) * EACH);
            format!(r#""{name}":{{"dtype":"U8","shape":[{EACH}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    assert!(header.len() > 12_000_000);
    let folder = Folder::single(&header, &[]);
    let file = std::fs::OpenOptions::new().write(true).open(folder.path().join("model.safetensors")).unwrap();
    file.set_len(8 + header.len() as u64 + COUNT * EACH).unwrap();
    #[cfg(target_os = "linux")]
    let before = reads();
    let catalog = folder.open().unwrap();
    #[cfg(target_os = "linux")]
    {
        let (bytes, calls) = reads();
        let (bytes, calls) = (bytes - before.0, calls - before.1);
        assert!(bytes < header.len() as u64 + 10_000, "{bytes} bytes read for a header of {}", header.len());
        assert!(calls < 50, "{calls} reads");
    }
    assert_eq!(catalog.tensors().len() as u64, COUNT);
    assert!(catalog.get("model.layers.10.mlp.experts.2.gate_proj.weight.7682").is_some());

    // A header of 110 MB is read; one beyond the cap is named with the cap. The file is sparse.
    let padded = format!("{{}}{}", " ".repeat(110_000_000));
    assert!(Folder::single(&padded, &[]).open().is_ok());
    let folder = Folder::new();
    let path = folder.write("model.safetensors", &(600u64 << 20).to_le_bytes());
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(700 << 20).unwrap();
    let (code, text) = folder.refusal();
    assert_eq!(code, "model_corrupt");
    assert_says(&text, &["629.1 MB", "536.9 MB"]);
}

#[test]
fn all_faults_of_all_shards_come_in_one_error() {
    let folder = Folder::new();
    for name in ["out-00000.safetensors", "out-00001.safetensors"] {
        let header = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]},"y":{"dtype":"F13","shape":[1],"data_offsets":[4,8]}}"#;
        folder.write(name, &file_bytes(header.as_bytes(), &[0; 8]));
    }
    folder.shard("out-00002.safetensors", &["good"]);
    let error = folder.open().unwrap_err();
    assert_eq!(error.faults().len(), 4);
    assert_says(&crate::refusal(&error).1, &["out-00000", "out-00001", "`x`", "`F13`", "3 more faults"]);
}

/// A small generator of numbers (xorshift), so that a failure repeats.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn mutated_headers_are_refused_or_keep_every_promise() {
    use colibri_store::FileId;
    use colibri_store::container::safetensors::parse_header;

    const DATA: u64 = 24;
    let good = br#"{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"U8","shape":[8],"data_offsets":[16,24]}}"#;
    let path = std::path::Path::new("m.safetensors");
    let alphabet = b"{}[]\",:0123456789.-e \\u\x00\xffFUI";
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut text = good.to_vec();
        for _ in 0..=numbers.below(3) {
            if text.len() < 2 {
                break;
            }
            let at = numbers.below(text.len());
            let byte = alphabet[numbers.below(alphabet.len())];
            match numbers.below(4) {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                2 => drop(text.remove(at)),
                _ => text.truncate(at.max(1)),
            }
        }
        let bytes = 8 + text.len() as u64 + DATA;
        match parse_header(&text, path, FileId(0), bytes) {
            Ok(header) => {
                accepted += 1;
                let mut end = bytes - DATA;
                for tensor in &header.tensors {
                    assert_eq!(tensor.offset, end, "{}", String::from_utf8_lossy(&text));
                    assert_eq!(tensor.dtype.bytes(&tensor.shape), Some(tensor.bytes));
                    end += tensor.bytes;
                }
                assert_eq!(end, bytes);
            }
            Err(faults) => assert!(!faults.is_empty() && faults.iter().all(|fault| !fault.what.is_empty())),
        }
    }
    assert!(accepted > 100, "mutations of names leave a valid header: {accepted}");
}
