//! Writes one shard of a container: a safetensors file that follows colibri's rules of alignment.
//!
//! A [`ShardPlan`] lists the tensors in the order of their data and knows every offset before a byte is written; a
//! [`ShardWriter`] then streams the data in that order. Must hold: data starts on a multiple of 4096 from the start of
//! the file (the header is filled up with spaces); a tensor starts on the alignment it was planned with; holes are pad
//! tensors (`__pad__.SHARD.N`), because the format forbids bytes that belong to no tensor; every weight has a stamp under
//! `colibri.fmt`. The same plan and data give the same bytes. Format: <https://github.com/huggingface/safetensors>.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::manifest::FileDigest;
use super::record::RECORD_ALIGNMENT;
use super::{Dtype, PAD_PREFIX};
use crate::catalog::STAMP_KEY;
use crate::digest::Digester;
use crate::durable::{SealedFile, StreamFile};
use crate::error::{StoreError, shown};

/// The longest header that other safetensors readers accept, in bytes.
const MAX_HEADER: usize = 100_000_000;

/// One tensor of a shard, and where its data lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Name in the header.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape in the header.
    pub shape: Vec<u64>,
    /// First byte, from the start of the data, which is a multiple of 4096 from the start of the file.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// The tensors of a shard in the order of their data.
#[derive(Clone, Debug)]
pub struct ShardPlan {
    shard: String,
    tensors: Vec<PlannedTensor>,
    stamps: Map<String, Value>,
    pads: usize,
    end: u64,
}

impl ShardPlan {
    /// An empty shard; `shard` must differ between the shards of a container, since it makes pad names unique.
    #[must_use]
    pub fn new(shard: &str) -> Self {
        Self { shard: shard.to_owned(), tensors: Vec::new(), stamps: Map::new(), pads: 0, end: 0 }
    }

    /// Name of the shard.
    #[must_use]
    pub fn shard(&self) -> &str {
        &self.shard
    }

    /// The tensors so far, pads included.
    #[must_use]
    pub fn tensors(&self) -> &[PlannedTensor] {
        &self.tensors
    }

    /// Bytes of data so far.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.end
    }

    /// Adds a tensor whose data starts on a multiple of `alignment` (which must divide 4096).
    ///
    /// # Errors
    /// A shape whose size overflows.
    pub fn push(&mut self, name: &str, dtype: Dtype, shape: &[u64], alignment: u64) -> Result<(), StoreError> {
        self.align(alignment)?;
        let bytes = dtype.bytes(shape).ok_or_else(|| too_large(name))?;
        self.place(name.to_owned(), dtype, shape.to_vec(), bytes)
    }

    /// Records the storage format of a weight.
    pub fn stamp(&mut self, tensor: &str, format: &str) {
        self.stamps.insert(tensor.to_owned(), Value::from(format));
    }

    /// Fills up to a multiple of `alignment` with a pad tensor.
    ///
    /// # Errors
    /// An end that overflows.
    pub fn align(&mut self, alignment: u64) -> Result<(), StoreError> {
        let aligned = self.end.checked_next_multiple_of(alignment).ok_or_else(|| too_large(&self.shard))?;
        let gap = aligned - self.end;
        if gap == 0 {
            return Ok(());
        }
        let name = format!("{PAD_PREFIX}{}.{}", self.shard, self.pads);
        self.pads += 1;
        self.place(name, Dtype::U8, vec![gap], gap)
    }

    fn place(&mut self, name: String, dtype: Dtype, shape: Vec<u64>, bytes: u64) -> Result<(), StoreError> {
        let start = self.end;
        self.end = start.checked_add(bytes).ok_or_else(|| too_large(&name))?;
        self.tensors.push(PlannedTensor { name, dtype, shape, start, bytes });
        Ok(())
    }

    /// The eight bytes of length, the JSON text and the spaces that fill it up to a multiple of 4096.
    ///
    /// # Errors
    /// A header that other readers would refuse for its length.
    pub fn header(&self) -> Result<Vec<u8>, StoreError> {
        let stamps = Value::Object(self.stamps.clone()).to_string();
        let mut entries = Map::new();
        entries.insert("__metadata__".to_owned(), json!({ STAMP_KEY: stamps, "format": "pt" }));
        for tensor in &self.tensors {
            let entry = json!({
                "dtype": tensor.dtype.name(),
                "shape": tensor.shape,
                "data_offsets": [tensor.start, tensor.start + tensor.bytes],
            });
            entries.insert(tensor.name.clone(), entry);
        }
        let text = Value::Object(entries).to_string();
        let alignment = RECORD_ALIGNMENT as usize;
        let total = (8 + text.len()).next_multiple_of(alignment);
        if total - 8 > MAX_HEADER {
            return Err(StoreError::Internal { what: format!("the header of shard {} is too long", self.shard) });
        }
        let mut header = Vec::with_capacity(total);
        header.extend_from_slice(&((total - 8) as u64).to_le_bytes());
        header.extend_from_slice(text.as_bytes());
        header.resize(total, b' ');
        Ok(header)
    }

    /// Bytes of the finished file.
    ///
    /// # Errors
    /// As [`ShardPlan::header`].
    pub fn file_bytes(&self) -> Result<u64, StoreError> {
        let header = self.header()?.len() as u64;
        header.checked_add(self.end).ok_or_else(|| too_large(&self.shard))
    }
}

/// Streams the data of a planned shard. Dropping it before [`ShardWriter::finish`] leaves nothing behind.
#[derive(Debug)]
pub struct ShardWriter {
    plan: ShardPlan,
    file: StreamFile,
    target: PathBuf,
    digest: Digester,
    /// Bytes handed over so far, header included.
    written: u64,
    /// The tensor being written, and how much of it is.
    current: usize,
    filled: u64,
}

impl ShardWriter {
    /// Opens the file `directory/SHARD.safetensors` and writes its header.
    ///
    /// # Errors
    /// The folder cannot be written or the disk is full.
    pub fn create(directory: &Path, plan: ShardPlan) -> Result<Self, StoreError> {
        let target = directory.join(format!("{}.safetensors", plan.shard));
        let header = plan.header()?;
        let bytes = (header.len() as u64).saturating_add(plan.end);
        let mut writer = Self {
            plan,
            file: StreamFile::create(&target, bytes)?,
            target,
            digest: Digester::new(),
            written: 0,
            current: 0,
            filled: 0,
        };
        writer.put(&header)?;
        Ok(writer)
    }

    /// Writes the next bytes of `tensor`: tensors in planned order, each in as many pieces as the caller likes. Pads are
    /// written on the way.
    ///
    /// # Errors
    /// The disk is full or the file cannot be written; a tensor out of turn or of another length.
    pub fn write(&mut self, tensor: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.pad()?;
        let length = bytes.len() as u64;
        let expected = self.plan.tensors.get(self.current);
        match expected {
            Some(planned) if planned.name == tensor && planned.bytes - self.filled >= length => {
                self.filled += length;
                if self.filled == planned.bytes {
                    (self.current, self.filled) = (self.current + 1, 0);
                }
                self.put(bytes)
            }
            _ => Err(StoreError::Internal {
                what: format!("{} bytes of {} do not fit the plan of {}", length, shown(tensor), self.plan.shard),
            }),
        }
    }

    /// Writes the pads that lie before the next tensor, and skips empty tensors.
    fn pad(&mut self) -> Result<(), StoreError> {
        while let Some(planned) = self.plan.tensors.get(self.current) {
            let pad = planned.name.starts_with(PAD_PREFIX);
            if self.filled > 0 || !(pad || planned.bytes == 0) {
                break;
            }
            // A pad is shorter than its alignment.
            let zeros = vec![0u8; usize::try_from(planned.bytes).unwrap_or(0)];
            self.put(&zeros)?;
            self.current += 1;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.digest.update(bytes);
        self.written += bytes.len() as u64;
        self.file.write(bytes)
    }

    /// Writes what is left; the shard is complete, but neither flushed nor named.
    ///
    /// # Errors
    /// As [`ShardWriter::write`]; data that is missing.
    pub fn seal(mut self) -> Result<SealedShard, StoreError> {
        self.pad()?;
        if let Some(planned) = self.plan.tensors.get(self.current) {
            return Err(StoreError::Internal {
                what: format!("the data of {} ends before {}", self.plan.shard, shown(&planned.name)),
            });
        }
        let file = self.target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let digest = FileDigest { file, bytes: self.written, sha256: self.digest.finish() };
        Ok(SealedShard { file: self.file.seal()?, digest })
    }

    /// Seals the shard, flushes it to the disk and gives it its name.
    ///
    /// # Errors
    /// As [`ShardWriter::seal`].
    pub fn finish(self) -> Result<FileDigest, StoreError> {
        self.seal()?.commit()
    }
}

/// A shard that is complete, but neither flushed nor named. Dropping it leaves nothing behind.
#[derive(Debug)]
pub struct SealedShard {
    file: SealedFile,
    digest: FileDigest,
}

impl SealedShard {
    /// How long the disk was busy with it.
    #[must_use]
    pub fn writing(&self) -> Duration {
        self.file.writing()
    }

    /// Flushes the shard to the disk and gives it its name.
    ///
    /// # Errors
    /// The disk is full, or the file cannot be written.
    pub fn commit(self) -> Result<FileDigest, StoreError> {
        self.file.commit()?;
        Ok(self.digest)
    }
}

fn too_large(name: &str) -> StoreError {
    StoreError::Internal { what: format!("the size of {} does not fit 64 bits", shown(name)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::FileId;
    use crate::container::safetensors::read_header;

    fn plan() -> ShardPlan {
        let mut plan = ShardPlan::new("part-00001");
        plan.push("a.weight", Dtype::U8, &[100], 64).unwrap();
        plan.push("a.weight.qs", Dtype::F32, &[3], 64).unwrap();
        plan.stamp("a.weight", "int8-row");
        plan.align(RECORD_ALIGNMENT).unwrap();
        plan.push("norm.weight", Dtype::F32, &[5], 64).unwrap();
        plan.stamp("norm.weight", "f32");
        plan
    }

    fn write(folder: &Path, plan: ShardPlan, piece: usize) -> FileDigest {
        let tensors: Vec<PlannedTensor> = plan.tensors().to_vec();
        let mut writer = ShardWriter::create(folder, plan).unwrap();
        for tensor in tensors.iter().filter(|tensor| !tensor.name.starts_with(PAD_PREFIX)) {
            let data: Vec<u8> = (0..tensor.bytes).map(|i| (i % 251) as u8 + 1).collect();
            for bytes in data.chunks(piece) {
                writer.write(&tensor.name, bytes).unwrap();
            }
        }
        writer.finish().unwrap()
    }

    #[test]
    fn alignment_holds_from_the_start_of_the_file_and_pads_fill_the_holes() {
        let folder = tempfile::tempdir().unwrap();
        let written = write(folder.path(), plan(), 7);
        let path = folder.path().join(&written.file);
        let header = read_header(&path, FileId(0)).unwrap();
        assert_eq!(header.file.bytes, written.bytes);
        assert_eq!(written.sha256, crate::digest::sha256_file(&path, &mut |_| true).unwrap());
        let mut pads = 0;
        let content = std::fs::read(&path).unwrap();
        for tensor in &header.tensors {
            let data = &content[tensor.offset as usize..(tensor.offset + tensor.bytes) as usize];
            if tensor.name.starts_with(PAD_PREFIX) {
                pads += 1;
                assert!(data.iter().all(|byte| *byte == 0));
            } else {
                assert_eq!(tensor.offset % 64, 0, "{}", tensor.name);
                assert!(data.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8 + 1));
            }
        }
        assert_eq!(pads, 2);
        let first = header.tensors.iter().map(|tensor| tensor.offset).min().unwrap();
        assert_eq!(first % RECORD_ALIGNMENT, 0);
        let record = header.tensors.iter().find(|tensor| tensor.name == "norm.weight").unwrap();
        assert_eq!(record.offset % RECORD_ALIGNMENT, 0);
        let stamps = header.metadata.get(STAMP_KEY).unwrap();
        assert_eq!(stamps, r#"{"a.weight":"int8-row","norm.weight":"f32"}"#);
    }

    #[test]
    fn pieces_do_not_change_the_file() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (small, large) = (write(folders[0].path(), plan(), 1), write(folders[1].path(), plan(), 1000));
        assert_eq!(small, large);
        let read = |index: usize| std::fs::read(folders[index].path().join(&small.file)).unwrap();
        assert_eq!(read(0), read(1));
    }

    #[test]
    fn large_pieces_pass_the_buffer_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = ShardPlan::new("large");
        const BUFFER: usize = 4 << 20;
        plan.push("x", Dtype::U8, &[3 * BUFFER as u64 + 5], 64).unwrap();
        for piece in [BUFFER - 1, BUFFER, BUFFER + 1, 4096] {
            let written = write(folder.path(), plan.clone(), piece);
            let content = std::fs::read(folder.path().join(&written.file)).unwrap();
            let data = &content[content.len() - (3 * BUFFER + 5)..];
            assert!(data.iter().enumerate().all(|(i, byte)| *byte == (i % 251) as u8 + 1), "piece {piece}");
        }
    }

    #[test]
    fn data_out_of_turn_too_long_or_missing_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = ShardWriter::create(folder.path(), plan()).unwrap();
        assert_eq!(writer.write("norm.weight", &[0; 4]).unwrap_err().code(), "internal");
        assert_eq!(writer.write("a.weight", &[0; 101]).unwrap_err().code(), "internal");
        writer.write("a.weight", &[0; 100]).unwrap();
        assert_eq!(writer.finish().unwrap_err().code(), "internal");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_empty_shard_and_hostile_names_still_make_a_valid_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = ShardPlan::new("odd");
        plan.push("quote\" back\\slash \u{1F426}", Dtype::F32, &[0, 4], 64).unwrap();
        let written = write(folder.path(), plan, 1);
        let header = read_header(&folder.path().join(&written.file), FileId(0)).unwrap();
        assert_eq!(header.tensors[0].name, "quote\" back\\slash \u{1F426}");
        assert!(ShardPlan::new("x").push("huge", Dtype::F32, &[u64::MAX, 2], 64).is_err());
    }
}
