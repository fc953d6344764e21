//! The journal of an unfinished conversion: with what parameters it was begun, from what, and which shards are finished.
//!
//! It lies in the build folder and is replaced as a whole, written beside itself, flushed and renamed; a shard is entered
//! after it was flushed and named. So after a crash at any moment the journal tells the truth: what it lists is whole and
//! on the disk, anything else in the folder is to be written anew. Refuses to go on with other parameters, or from a
//! source that is not what it was, and names what differs.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use colibri_store::container::json::reason;
use colibri_store::container::listing::{INDEX_NAME, JOURNAL_NAME};
use colibri_store::container::manifest::FileDigest;
use colibri_store::container::safetensors::read_stub;
use colibri_store::container::{FileId, read_small};
use colibri_store::digest::{Digester, sha256_file};
use colibri_store::durable::{BuildNames, write_file};
use colibri_store::error::{Fault, FaultKind, StoreError, grouped};
use serde::{Deserialize, Serialize};

use super::ConvertOptions;
use super::layout::PlannedShard;
use super::remains::Place;
use super::source::SourceRecord;
use crate::error::EngineError;

/// Name of the file that tells where the tensors lie; written once.
const RECORD_NAME: &str = ".colibri-convert.source.json";
/// What a conversion keeps in its build folder.
pub(super) const BUILD_NAMES: BuildNames =
    BuildNames { journals: &[JOURNAL_NAME, RECORD_NAME], staging: "source", finished: ".safetensors" };
/// Version of both files.
const VERSION: u32 = 1;
/// The longest of them that is read, in bytes.
const LONGEST: u64 = 1 << 30;

/// The state of a conversion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Journal {
    version: u32,
    /// Program and version that began it.
    writer: String,
    /// What the bytes of the container depend on beside the source, under the names of the command line.
    parameters: BTreeMap<String, String>,
    /// SHA-256 of `config.json`.
    config: String,
    /// SHA-256 of the index, if there is one.
    index: Option<String>,
    /// Digest of the layout.
    layout: String,
    /// The source's weight files that were seen so far.
    files: BTreeMap<String, SourceFile>,
    /// The files that travel along.
    pub companions: Vec<FileDigest>,
    /// The shards that are finished.
    pub shards: Vec<FinishedShard>,
}

/// What a weight file of the source was when it was first seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SourceFile {
    bytes: u64,
    /// SHA-256 of its header.
    header: String,
}

/// A shard that is whole and on the disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FinishedShard {
    /// Name, length and digest.
    #[serde(flatten)]
    pub digest: FileDigest,
    /// It was read back from the disk and compared.
    pub verified: bool,
    /// Sums behind the relative errors.
    pub sums: Vec<ClassSum>,
}

/// Sums behind the relative error of a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ClassSum {
    pub class: String,
    pub error: f64,
    pub weight: f64,
}

/// The parameters of a conversion, as the journal has them.
fn parameters(options: &ConvertOptions) -> BTreeMap<String, String> {
    let mut parameters = BTreeMap::new();
    let mut set = |name: &str, value: String| parameters.insert(name.to_owned(), value);
    set("--repack", options.repack.to_string());
    set("--no-mtp", (!options.keep_mtp).to_string());
    if !options.repack {
        set("--experts", options.experts.name());
        set("--dense", options.dense.name());
        set("--embeddings", options.embeddings.name());
        set("--mtp-format", options.mtp.name());
        set("--scale-rule", options.scale_rule.name().to_owned());
    }
    parameters
}

fn writer() -> String {
    concat!("colibri ", env!("CARGO_PKG_VERSION")).to_owned()
}

impl Journal {
    /// The journal of a conversion that begins.
    pub(super) fn begin(source: &Path, options: &ConvertOptions, layout: String) -> Result<Self, EngineError> {
        let (config, index) = descriptions(source)?;
        Ok(Self {
            version: VERSION,
            writer: writer(),
            parameters: parameters(options),
            config,
            index,
            layout,
            files: BTreeMap::new(),
            companions: Vec::new(),
            shards: Vec::new(),
        })
    }

    /// The journal in a build folder, and where the tensors lie; `None` when nothing was begun there.
    pub(super) fn load(place: Place<'_>) -> Result<Option<(Self, Option<SourceRecord>)>, EngineError> {
        /// The one key that says whether the rest can be understood.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let folder = place.folder;
        let Some(text) = read(folder, JOURNAL_NAME)? else { return Ok(None) };
        let version: Version = parse(place, JOURNAL_NAME, &text)?;
        if version.version != VERSION {
            let what = format!("{JOURNAL_NAME} has version {}; this program reads {VERSION}", version.version);
            let fault = Fault::file(FaultKind::Unsupported, &folder.join(JOURNAL_NAME), what);
            let fix = format!("go on with the version that began it{}", place.otherwise());
            return Err(StoreError::fault(folder, fault.fix(fix)).into());
        }
        let journal: Self = parse(place, JOURNAL_NAME, &text)?;
        let record = match read(folder, RECORD_NAME)? {
            Some(text) => Some(parse(place, RECORD_NAME, &text)?),
            None => None,
        };
        Ok(Some((journal, record)))
    }

    /// The weight files of the source, as they were written down when the conversion began.
    pub(super) fn recorded_files(folder: &Path) -> Option<Vec<String>> {
        let text = read(folder, RECORD_NAME).ok()??;
        serde_json::from_slice::<SourceRecord>(&text).ok().map(|record| record.files)
    }

    /// Writes down where the tensors lie.
    pub(super) fn save_record(folder: &Path, record: &SourceRecord) -> Result<(), EngineError> {
        Ok(write_file(&folder.join(RECORD_NAME), &json(RECORD_NAME, record)?)?)
    }

    /// Replaces the journal in the build folder.
    pub(super) fn save(&self, folder: &Path) -> Result<(), EngineError> {
        Ok(write_file(&folder.join(JOURNAL_NAME), &json(JOURNAL_NAME, self)?)?)
    }

    /// Refuses to go on with other parameters.
    pub(super) fn check_parameters(&self, options: &ConvertOptions, place: Place<'_>) -> Result<(), EngineError> {
        let now = parameters(options);
        let none = || "not given".to_owned();
        let mut differences = Vec::new();
        let names: std::collections::BTreeSet<&String> = self.parameters.keys().chain(now.keys()).collect();
        for name in names {
            let (then, now) = (self.parameters.get(name), now.get(name));
            if then != now {
                let text = |value: Option<&String>| value.cloned().unwrap_or_else(none);
                differences.push(format!("{name} was {} and is now {}", text(then), text(now)));
            }
        }
        Self::differ(differences, place)
    }

    /// Refuses to go on when this program would lay out other shards.
    pub(super) fn check_layout(&self, layout: &str, place: Place<'_>) -> Result<(), EngineError> {
        let same = self.layout == layout;
        let text = || format!("the program was {} and is now {}, which lays out other shards", self.writer, writer());
        Self::differ(if same { Vec::new() } else { vec![text()] }, place)
    }

    fn differ(differences: Vec<String>, place: Place<'_>) -> Result<(), EngineError> {
        if differences.is_empty() {
            return Ok(());
        }
        let (folder, otherwise) = (place.folder.to_path_buf(), place.otherwise());
        Err(EngineError::ConvertParametersDiffer { folder, differences, otherwise })
    }

    /// Refuses to go on when configuration or index are not what they were.
    pub(super) fn check_source(&self, place: Place<'_>) -> Result<(), EngineError> {
        let (config, index) = descriptions(place.source)?;
        let other = |name: &str| changed(&place.source.join(name), format!("the SHA-256 of {name} is another"), place);
        if config != self.config {
            return Err(other("config.json"));
        }
        if index != self.index {
            return Err(other(INDEX_NAME));
        }
        Ok(())
    }

    /// Notes the weight file `name` of the source, which lies at `path`, or refuses one that is not what it was.
    pub(super) fn observe(&mut self, path: &Path, name: &str, place: Place<'_>) -> Result<(), EngineError> {
        self.compare(path, name, source_file(path)?, place)
    }

    /// As [`Journal::observe`], with the header `stub` of a file that is not there yet: the file that comes must have it.
    pub(super) fn observe_stub(
        &mut self,
        stub: &Path,
        path: &Path,
        name: &str,
        place: Place<'_>,
    ) -> Result<(), EngineError> {
        let bytes = read_stub(stub, path, FileId(0))?.file.bytes;
        let header = sha256_file(stub, &mut |_| true)?;
        self.compare(path, name, SourceFile { bytes, header }, place)
    }

    fn compare(&mut self, path: &Path, name: &str, now: SourceFile, place: Place<'_>) -> Result<(), EngineError> {
        let Some(then) = self.files.get(name) else {
            self.files.insert(name.to_owned(), now);
            return Ok(());
        };
        if *then == now {
            return Ok(());
        }
        let change = if then.bytes == now.bytes {
            "its header is another".to_owned()
        } else {
            format!("it was {} bytes and is now {}", grouped(then.bytes), grouped(now.bytes))
        };
        Err(changed(path, change, place))
    }

    /// Bytes of a weight file of the source, if it was seen.
    pub(super) fn source_bytes(&self, file: &str) -> Option<u64> {
        self.files.get(file).map(|file| file.bytes)
    }

    /// Bytes of all weight files seen.
    pub(super) fn all_source_bytes(&self) -> u64 {
        self.files.values().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Whether a shard is finished.
    pub(super) fn finished(&self, file: &str) -> bool {
        self.shards.iter().any(|shard| shard.digest.file == file)
    }

    /// Forgets shards that the layout does not have, that are not there, or that are not as long as they were.
    /// Returns the names of those that the layout has.
    pub(super) fn forget_lost(&mut self, folder: &Path, layout: &[PlannedShard]) -> Vec<String> {
        let mut lost = Vec::new();
        let mut wanted: HashSet<String> = layout.iter().map(PlannedShard::file).collect();
        self.shards.retain(|shard| {
            // Each once: the name is taken out.
            if !wanted.remove(&shard.digest.file) {
                return false;
            }
            let facts = std::fs::symlink_metadata(folder.join(&shard.digest.file));
            let whole = facts.is_ok_and(|facts| facts.is_file() && facts.len() == shard.digest.bytes);
            if !whole {
                lost.push(shard.digest.file.clone());
            }
            whole
        });
        lost
    }

    /// Enters a shard that was flushed and named.
    pub(super) fn enter(&mut self, shard: FinishedShard, folder: &Path) -> Result<(), EngineError> {
        self.shards.retain(|known| known.digest.file != shard.digest.file);
        self.shards.push(shard);
        self.save(folder)
    }

    /// `sqrt(sum (stored - w)^2 / sum w^2)` of a class; 0 when it holds zeros only.
    pub(super) fn relative_error(&self, class: &str) -> f64 {
        // In the order of names, so that an interruption changes no digit.
        let mut shards: Vec<&FinishedShard> = self.shards.iter().collect();
        shards.sort_by(|left, right| left.digest.file.cmp(&right.digest.file));
        let (mut error, mut weight) = (0.0, 0.0);
        for sum in shards.iter().flat_map(|shard| &shard.sums).filter(|sum| sum.class == class) {
            error += sum.error;
            weight += sum.weight;
        }
        if weight > 0.0 { f64::sqrt(error / weight) } else { 0.0 }
    }
}

/// The refusal of a source that is not what it was.
fn changed(path: &Path, change: String, place: Place<'_>) -> EngineError {
    let (folder, otherwise) = (place.folder.to_path_buf(), place.otherwise());
    EngineError::ConvertSourceChanged { path: path.to_path_buf(), change, folder, otherwise }
}

/// Digests of configuration and index.
fn descriptions(source: &Path) -> Result<(String, Option<String>), EngineError> {
    let config = sha256_file(&source.join("config.json"), &mut |_| true)?;
    let index = source.join(INDEX_NAME);
    let index = if index.is_file() { Some(sha256_file(&index, &mut |_| true)?) } else { None };
    Ok((config, index))
}

/// Length and digest of the header of a weight file.
fn source_file(path: &Path) -> Result<SourceFile, EngineError> {
    let failed = |error: std::io::Error| StoreError::read_failed(path, 0, 8, &error, 1);
    let mut file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let mut start = [0u8; 8];
    file.read_exact(&mut start).map_err(failed)?;
    let mut rest = u64::from_le_bytes(start).min(bytes.saturating_sub(8));
    let (mut digest, mut block) = (Digester::new(), vec![0u8; 1 << 16]);
    digest.update(&start);
    while rest > 0 {
        let count = usize::try_from(rest).unwrap_or(usize::MAX).min(block.len());
        file.read_exact(&mut block[..count]).map_err(failed)?;
        digest.update(&block[..count]);
        rest -= count as u64;
    }
    Ok(SourceFile { bytes, header: digest.finish() })
}

fn read(folder: &Path, name: &str) -> Result<Option<Vec<u8>>, EngineError> {
    let path: PathBuf = folder.join(name);
    if std::fs::symlink_metadata(&path).is_err() {
        return Ok(None);
    }
    Ok(Some(read_small(&path, LONGEST).map_err(|fault| StoreError::fault(folder, fault))?))
}

fn parse<'a, T: Deserialize<'a>>(place: Place<'_>, name: &str, text: &'a [u8]) -> Result<T, EngineError> {
    let folder = place.folder;
    serde_json::from_slice(text).map_err(|error| {
        let fault = Fault::file(FaultKind::Corrupt, &folder.join(name), format!("{name} is malformed"))
            .why(reason(&error))
            .fix(format!("put back the {name} that was written there{}", place.otherwise()));
        StoreError::fault(folder, fault).into()
    })
}

fn json<T: Serialize>(name: &str, value: &T) -> Result<Vec<u8>, EngineError> {
    let text = serde_json::to_vec(value);
    Ok(text.map_err(|error| StoreError::Internal { what: format!("{name} cannot be written: {error}") })?)
}
