//! Target `header`: the bytes are the JSON text of a safetensors header, and, read again, a whole file.
//!
//! Asserts: a refusal has faults, all of this file, bounded in number and length; what is accepted keeps every promise of
//! `read_header` (known types, few dimensions, spans that follow each other through the data to the last byte, unique
//! names), is no larger than the text that made it, reads the same from a file, and can be written and read again.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::path::Path;

use colibri_store::container::safetensors::{Header, MAX_RANK, parse_header, read_header};
use colibri_store::{FileId, StoreError, TensorInfo};
use serde_json::{Map, Value, json};

use super::check;

/// More faults of one file are only counted.
const MOST_FAULTS: usize = 40;
/// The shortest description of a tensor.
const SHORTEST_ENTRY: usize = r#""":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}"#.len();
/// The longest file that is made for a header: it is a hole and takes no room.
const LONGEST_FILE: u64 = 1 << 40;

/// Runs the target.
pub fn run(data: &[u8]) {
    let folder = check::folder();
    let path = folder.path().join("model.safetensors");
    let file_bytes = 8 + data.len() as u64 + data_bytes(data);
    let parsed = parse_header(data, &path, FileId(3), file_bytes);
    match &parsed {
        Ok(header) => accepted(header, data.len(), file_bytes),
        Err(faults) => {
            assert!(!faults.is_empty() && faults.len() <= MOST_FAULTS, "{} faults", faults.len());
            for fault in faults {
                check::fault(fault, folder.path());
                assert_eq!(fault.file, path);
            }
        }
    }
    if (2..=LONGEST_FILE).contains(&file_bytes) && data.len() >= 2 {
        let read = written(&path, &(data.len() as u64).to_le_bytes(), data, file_bytes);
        assert_eq!(
            parsed.as_ref().ok().map(|header| &header.tensors),
            read.as_ref().ok().map(|header| &header.tensors)
        );
        assert_eq!(
            parsed.as_ref().err().map_or(&[][..], Vec::as_slice),
            read.as_ref().err().map_or(&[][..], StoreError::faults)
        );
    }
    match written(&path, &[], data, data.len() as u64) {
        Ok(header) => accepted(&header, data.len(), data.len() as u64),
        Err(error) => check::store_refusal(&error, folder.path()),
    }
}

/// The header of a file of these bytes, filled up to `length`.
fn written(path: &Path, start: &[u8], text: &[u8], length: u64) -> Result<Header, StoreError> {
    std::fs::write(path, [start, text].concat()).expect("the file of a header");
    let file = OpenOptions::new().write(true).open(path).expect("the file of a header");
    file.set_len(length).expect("a hole at its end");
    read_header(path, FileId(3))
}

/// Where the last tensor of a header ends, so that a file can be as long as the header says.
fn data_bytes(text: &[u8]) -> u64 {
    let Ok(Value::Object(entries)) = serde_json::from_slice(text) else { return 0 };
    let ends = entries.values().filter_map(|entry| entry.get("data_offsets")?.get(1)?.as_u64());
    ends.max().unwrap_or(0).min(u64::MAX >> 1)
}

fn accepted(header: &Header, text_bytes: usize, file_bytes: u64) {
    assert_eq!(header.file.bytes, file_bytes);
    assert!(header.tensors.len() * SHORTEST_ENTRY <= text_bytes, "{} tensors", header.tensors.len());
    let names: BTreeSet<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names.len(), header.tensors.len());
    let held: usize = header.tensors.iter().map(|tensor| tensor.name.len() + tensor.shape.len()).sum();
    let noted: usize = header.metadata.pairs().iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(held + noted <= text_bytes);
    let data_bytes: u64 = header.tensors.iter().map(|tensor| tensor.bytes).sum();
    let mut end = file_bytes - data_bytes;
    for tensor in &header.tensors {
        assert_eq!((tensor.offset, tensor.file), (end, FileId(3)), "{tensor:?}");
        assert!(tensor.shape.len() <= MAX_RANK);
        assert_eq!(tensor.dtype.bytes(&tensor.shape), Some(tensor.bytes), "{tensor:?}");
        end += tensor.bytes;
    }
    assert_eq!(end, file_bytes);
    same_again(header, data_bytes);
}

/// Writes the header in our own words and reads it again.
fn same_again(header: &Header, data_bytes: u64) {
    let first = header.file.bytes - data_bytes;
    let mut entries = Map::new();
    let metadata: Map<String, Value> =
        header.metadata.pairs().iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect();
    entries.insert("__metadata__".to_owned(), Value::Object(metadata));
    for tensor in header.tensors.iter().rev() {
        let start = tensor.offset - first;
        let offsets = [start, start + tensor.bytes];
        let entry = json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": offsets});
        entries.insert(tensor.name.clone(), entry);
    }
    let text = Value::Object(entries).to_string();
    let again = parse_header(text.as_bytes(), &header.file.path, FileId(3), 8 + text.len() as u64 + data_bytes);
    let again = again.unwrap_or_else(|faults| panic!("refused when written again: {faults:?}"));
    let place = |tensor: &TensorInfo, first: u64| TensorInfo { offset: tensor.offset - first, ..tensor.clone() };
    let moved = again.file.bytes - data_bytes;
    assert!(
        again
            .tensors
            .iter()
            .map(|tensor| place(tensor, moved))
            .eq(header.tensors.iter().map(|tensor| place(tensor, first)))
    );
    assert_eq!(again.metadata, header.metadata);
}
