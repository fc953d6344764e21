//! Reads the header of a safetensors file that may be hostile.
//!
//! A file is eight bytes of header length (little endian), a JSON header, then data without holes. Nothing is allocated
//! from a number in the file before that number was compared with the file's real length. What comes out of here obeys:
//! every tensor has a known type and at most [`MAX_RANK`] dimensions, its byte span equals shape times element size, lies
//! in the file, overlaps no other, and together the spans cover the data to the last byte. All faults are reported.
//!
//! Format: <https://github.com/huggingface/safetensors>.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::json::{StringMap, reason, repeated};
use super::{Dtype, FileId, FileInfo, TensorInfo, read_small};
use crate::error::{Fault, FaultKind, StoreError, file_name, grouped, human_bytes, shown};
use crate::memory;

/// The longest header that is read, in bytes.
pub const MAX_HEADER: u64 = 512 << 20;

/// The most dimensions a tensor may have.
pub const MAX_RANK: usize = 8;

/// How many tensors with faults are spelled out for one file.
const FAULTS_PER_FILE: usize = 32;

/// What a file's header says.
#[derive(Clone, Debug)]
pub struct Header {
    /// The file and its length.
    pub file: FileInfo,
    /// All tensors, pad tensors too, in the order of their data.
    pub tensors: Vec<TensorInfo>,
    /// The `__metadata__` object.
    pub metadata: StringMap,
}

/// Reads and validates the header of the file at `path`; its tensors carry `id`.
///
/// # Errors
/// All faults of the file; or the system's error, when it cannot be read or memory cannot be had.
pub fn read_header(path: &Path, id: FileId) -> Result<Header, StoreError> {
    let one = |fault: Fault| StoreError::fault(path, fault);
    let unreadable = |error: &std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            one(Fault::file(FaultKind::Missing, path, format!("{} is not there", file_name(path))))
        }
        _ => StoreError::read_failed(path, 0, 8, error, 1),
    };
    let facts = std::fs::metadata(path).map_err(|error| unreadable(&error))?;
    // A pipe or a device would block or never end.
    if !facts.is_file() {
        return Err(one(Fault::file(FaultKind::Corrupt, path, format!("{} is not a file", file_name(path)))));
    }
    let bytes = facts.len();
    let mut file = File::open(path).map_err(|error| unreadable(&error))?;
    let mut start = [0u8; 8];
    if bytes < 8 {
        return Err(one(not_safetensors(path, bytes, "it is too short for a header")));
    }
    file.read_exact(&mut start).map_err(|error| unreadable(&error))?;
    let length = u64::from_le_bytes(start);
    let room = bytes - 8;
    if length < 2 || length > room || length > MAX_HEADER {
        let mut opening = start.to_vec();
        let mut rest = [0u8; 120];
        let count = file.read(&mut rest).unwrap_or(0);
        opening.extend_from_slice(&rest[..count]);
        return Err(one(impostor(path, &opening).unwrap_or_else(|| bad_length(path, length, room))));
    }
    let Ok(length) = usize::try_from(length) else { return Err(one(bad_length(path, length, room))) };
    let mut text = memory::zeroed::<u8>(length)?;
    file.read_exact(&mut text).map_err(|error| unreadable(&error))?;
    parse_header(&text, path, id, bytes).map_err(|faults| StoreError::Faulty { path: path.to_path_buf(), faults })
}

/// Validates a header's text for a file of `file_bytes` bytes.
///
/// # Errors
/// All faults of the header.
pub fn parse_header(text: &[u8], path: &Path, id: FileId, file_bytes: u64) -> Result<Header, Vec<Fault>> {
    parse(text, path, id, Some(file_bytes))
}

/// Reads the header that `stub` holds of the file `path`, which is not there: the eight bytes of length and the text,
/// nothing else. The file is as long as its tensors say.
///
/// # Errors
/// As [`read_header`]; a stub that is longer or shorter than its header.
pub fn read_stub(stub: &Path, path: &Path, id: FileId) -> Result<Header, StoreError> {
    let content = read_small(stub, MAX_HEADER + 8).map_err(|fault| StoreError::fault(stub, fault))?;
    let text = content
        .split_first_chunk::<8>()
        .and_then(|(length, text)| (u64::from_le_bytes(*length) == text.len() as u64).then_some(text));
    let Some(text) = text else {
        let what = format!("{} is not the header of a safetensors file", file_name(stub));
        let fault = Fault::file(FaultKind::Corrupt, stub, what)
            .why(format!("it has {} bytes, and its first 8 announce another number", grouped(content.len() as u64)))
            .fix("remove that file and fetch it again");
        return Err(StoreError::fault(stub, fault));
    };
    parse(text, path, id, None).map_err(|faults| StoreError::Faulty { path: stub.to_path_buf(), faults })
}

/// Validates a header's text; a file of unknown length ends with its last tensor.
fn parse(text: &[u8], path: &Path, id: FileId, file_bytes: Option<u64>) -> Result<Header, Vec<Fault>> {
    let (mut raw, metadata) = parse_json(text, path).map_err(|fault| vec![fault])?;
    // Both terms are bounded by the file's length.
    let data_start = (text.len() as u64).saturating_add(8);
    let last = || raw.iter().map(|(_, tensor)| tensor.end).max().unwrap_or(0);
    let file_bytes = file_bytes.unwrap_or_else(|| data_start.saturating_add(last()));
    let data_bytes = file_bytes.saturating_sub(data_start);
    let mut faults = Faults { path, list: Vec::new(), dropped: 0 };
    if let Some(name) = repeated(&raw) {
        faults.push(Fault::tensor(FaultKind::Corrupt, path, name, "one tensor of this name", "two"));
    }
    raw.sort_by_key(|(_, tensor)| (tensor.start, tensor.end));
    check_end(&raw, &mut faults, file_bytes, data_start, data_bytes);
    check_cover(&raw, &mut faults, data_bytes);
    let mut tensors = Vec::with_capacity(raw.len());
    for (name, tensor) in raw {
        if let Some(dtype) = check_size(&name, &tensor, &mut faults) {
            tensors.push(TensorInfo {
                name,
                dtype,
                offset: data_start.saturating_add(tensor.start),
                bytes: tensor.end.saturating_sub(tensor.start),
                shape: tensor.shape.0,
                file: id,
            });
        }
    }
    let faults = faults.finish();
    if faults.is_empty() {
        Ok(Header { file: FileInfo { path: path.to_path_buf(), bytes: file_bytes }, tensors, metadata })
    } else {
        Err(faults)
    }
}

/// Collects faults of one file; counts what is beyond [`FAULTS_PER_FILE`].
struct Faults<'a> {
    path: &'a Path,
    list: Vec<Fault>,
    dropped: usize,
}

impl Faults<'_> {
    fn push(&mut self, fault: Fault) {
        if self.list.len() < FAULTS_PER_FILE { self.list.push(fault) } else { self.dropped += 1 }
    }

    fn tensor(&mut self, name: &str, expected: &str, got: &str) {
        self.push(Fault::tensor(FaultKind::Corrupt, self.path, name, expected, got));
    }

    fn finish(mut self) -> Vec<Fault> {
        if self.dropped > 0 {
            let what = format!("{}: {} more faults", file_name(self.path), self.dropped);
            self.list.push(Fault::file(FaultKind::Corrupt, self.path, what));
        }
        self.list
    }
}

/// Type known, offsets in order, span equal to shape times element size.
fn check_size(name: &str, tensor: &RawTensor, faults: &mut Faults<'_>) -> Option<Dtype> {
    let Some(dtype) = Dtype::parse(&tensor.dtype) else {
        faults.tensor(name, "a known dtype", &shown(&tensor.dtype));
        return None;
    };
    let Some(got) = tensor.end.checked_sub(tensor.start) else {
        faults.tensor(name, "data_offsets in rising order", &format!("[{}, {}]", tensor.start, tensor.end));
        return None;
    };
    let shape = format!("{} {:?}", dtype.name(), tensor.shape.0);
    match dtype.bytes(&tensor.shape.0) {
        Some(wanted) if wanted == got => Some(dtype),
        Some(wanted) => {
            faults.tensor(name, &format!("{} bytes for {shape}", grouped(wanted)), &format!("{} bytes", grouped(got)));
            None
        }
        None => {
            faults.tensor(name, "a shape that fills whole bytes and fits 64 bits", &shape);
            None
        }
    }
}

/// No tensor may end beyond the file; one fault for all that do, naming the first.
fn check_end(raw: &[(String, RawTensor)], faults: &mut Faults<'_>, file_bytes: u64, data_start: u64, data_bytes: u64) {
    let mut beyond = raw.iter().filter(|(_, tensor)| tensor.end > data_bytes || tensor.start > data_bytes);
    let Some((name, _)) = beyond.next() else { return };
    let count = beyond.count() + 1;
    let end = raw.iter().map(|(_, tensor)| tensor.end.max(tensor.start)).max().unwrap_or(0);
    let path = faults.path;
    let needed = data_start.saturating_add(end);
    let what = format!("{} is {} bytes; its header needs {}", file_name(path), grouped(file_bytes), grouped(needed));
    let why = format!(
        "{count} tensors end beyond the file, the first is {}; the file was cut short, usually by a full disk or a download \
         that stopped",
        shown(name)
    );
    let mut fault =
        Fault::file(FaultKind::Corrupt, path, what).why(why).fix("remove that file and fetch or convert it again");
    fault.tensor = Some(name.clone());
    faults.push(fault);
}

/// The spans, sorted by start, must follow each other without hole or overlap up to the end of the data.
fn check_cover(raw: &[(String, RawTensor)], faults: &mut Faults<'_>, data_bytes: u64) {
    let mut covered = 0u64;
    for (name, tensor) in raw {
        // Spans that are out of order or beyond the file are reported by the other checks.
        if tensor.end < tensor.start || tensor.end > data_bytes {
            return;
        }
        if tensor.start != covered {
            let sort = if tensor.start < covered { "overlaps the tensor before it" } else { "leaves a hole before it" };
            let got = format!("{} ({sort})", grouped(tensor.start));
            faults.tensor(name, &format!("data from offset {}", grouped(covered)), &got);
        }
        covered = covered.max(tensor.end);
    }
    if covered != data_bytes {
        let path = faults.path;
        let what = format!("{}: {} bytes after the last tensor", file_name(path), grouped(data_bytes - covered));
        faults.push(
            Fault::file(FaultKind::Corrupt, path, what)
                .why("the format forbids bytes that belong to no tensor")
                .fix("remove that file and fetch or convert it again"),
        );
    }
}

fn not_safetensors(path: &Path, bytes: u64, reason: &str) -> Fault {
    Fault::file(FaultKind::Corrupt, path, format!("{} is not a safetensors file", file_name(path)))
        .why(format!("it has {} bytes: {reason}", grouped(bytes)))
        .fix("remove that file and fetch or convert it again")
}

fn bad_length(path: &Path, length: u64, room: u64) -> Fault {
    let reason = if length > room {
        format!("its first 8 bytes announce a header of {} bytes and {} follow", grouped(length), grouped(room))
    } else if length > MAX_HEADER {
        format!("its header of {} is longer than the {} that are read", human_bytes(length), human_bytes(MAX_HEADER))
    } else {
        format!("its first 8 bytes announce a header of {length} bytes")
    };
    not_safetensors(path, room + 8, &reason)
}

/// Names what a file is that carries the name of weights and is none.
fn impostor(path: &Path, opening: &[u8]) -> Option<Fault> {
    const FETCH: &str = "fetch the file itself again";
    const KINDS: [(&[u8], &str, &str); 6] = [
        (b"version https://git-lfs", "a Git-LFS pointer, not weights", "run `git lfs pull` in the model's folder"),
        (b"<!doctype html", "an HTML page, not weights", FETCH),
        (b"<html", "an HTML page, not weights", FETCH),
        (b"{", "JSON text, not weights (the error of a download, or a config)", FETCH),
        (
            b"pk\x03\x04",
            "a zip archive (a PyTorch checkpoint), not safetensors",
            "convert the checkpoint to safetensors",
        ),
        (b"gguf", "a GGUF file, not safetensors", "open a safetensors checkpoint"),
    ];
    let lower: Vec<u8> = opening.trim_ascii_start().to_ascii_lowercase();
    let (_, what, fix) = KINDS.iter().find(|(prefix, ..)| lower.starts_with(prefix))?;
    Some(Fault::file(FaultKind::Corrupt, path, format!("{} is {what}", file_name(path))).fix(*fix))
}

/// A tensor's description as the header gives it, kinds checked, numbers not yet.
struct RawTensor {
    dtype: String,
    shape: Shape,
    start: u64,
    end: u64,
}

/// A shape of at most [`MAX_RANK`] dimensions: longer lists are refused while they are read.
struct Shape(Vec<u64>);

type RawHeader = (Vec<(String, RawTensor)>, StringMap);

/// Reads the JSON text into tensors sorted by name and the metadata.
fn parse_json(text: &[u8], path: &Path) -> Result<RawHeader, Fault> {
    let mut current = None;
    let mut parser = serde_json::Deserializer::from_slice(text);
    let parsed = HeaderSeed { current: &mut current }
        .deserialize(&mut parser)
        // Only padding may follow the closing brace.
        .and_then(|header| parser.end().map(|()| header));
    let (mut raw, metadata) = parsed.map_err(|error| {
        let what = match &current {
            Some(name) => format!("{}: the header's entry {} is malformed", file_name(path), shown(name)),
            None => format!("{}: the header is no valid JSON object", file_name(path)),
        };
        let mut fault = Fault::file(FaultKind::Corrupt, path, what)
            .why(reason(&error))
            .fix("remove that file and fetch or convert it again");
        fault.tensor = current.take();
        fault
    })?;
    raw.sort_by(|left, right| left.0.cmp(&right.0));
    Ok((raw, metadata))
}

/// Reads the outer object; leaves the name of the entry that failed in `current`.
struct HeaderSeed<'a> {
    current: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawHeader, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = RawHeader;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut tensors = Vec::new();
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                *self.current = Some(name);
                if metadata.replace(map.next_value::<StringMap>()?).is_some() {
                    return Err(A::Error::custom("the key appears twice"));
                }
                *self.current = None;
                continue;
            }
            match map.next_value::<RawTensor>() {
                Ok(tensor) => tensors.push((name, tensor)),
                Err(error) => {
                    *self.current = Some(name);
                    return Err(error);
                }
            }
        }
        Ok((tensors, metadata.unwrap_or_default()))
    }
}

impl<'de> Deserialize<'de> for RawTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = RawTensor;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object with dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawTensor, A::Error> {
                let (mut dtype, mut shape, mut offsets) = (None, None, None);
                while let Some(key) = map.next_key::<String>()? {
                    let again = match key.as_str() {
                        "dtype" => dtype.replace(map.next_value::<String>()?).is_some(),
                        "shape" => shape.replace(map.next_value::<Shape>()?).is_some(),
                        "data_offsets" => offsets.replace(map.next_value::<[u64; 2]>()?).is_some(),
                        _ => map.next_value::<IgnoredAny>().map(|_| false)?,
                    };
                    if again {
                        return Err(A::Error::custom(format!("the key {} appears twice", shown(&key))));
                    }
                }
                let missing = |field: &str| A::Error::custom(format!("{field} is missing"));
                let [start, end] = offsets.ok_or_else(|| missing("data_offsets"))?;
                Ok(RawTensor {
                    dtype: dtype.ok_or_else(|| missing("dtype"))?,
                    shape: shape.ok_or_else(|| missing("shape"))?,
                    start,
                    end,
                })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Extents;
        impl<'de> Visitor<'de> for Extents {
            type Value = Shape;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a list of at most {MAX_RANK} extents")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut extents = Vec::new();
                while let Some(extent) = list.next_element()? {
                    if extents.len() == MAX_RANK {
                        return Err(A::Error::custom(format!("more than {MAX_RANK} dimensions")));
                    }
                    extents.push(extent);
                }
                Ok(Shape(extents))
            }
        }
        deserializer.deserialize_seq(Extents)
    }
}
