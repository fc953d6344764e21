//! All shards of a model as one table: name -> location, validated once, every fault of every shard in one error.
//!
//! Refuses a model with a missing or damaged shard, a tensor that lies in two shards, and an index that disagrees with the
//! shards. What comes out is sorted by name and can be trusted; only whether a tensor is what the MODEL needs is asked
//! later, by [`Catalog::weight`] and [`Catalog::vector`].

use std::path::{Path, PathBuf};

use crate::container::json::{StringMap, reason};
use crate::container::listing::{self, Listing, stub_of};
use crate::container::manifest::{FileDigest, Manifest};
use crate::container::safetensors::{Header, read_header, read_stub};
use crate::container::{FileId, FileInfo, PAD_PREFIX, TensorInfo, format, resolve};
use crate::error::{Fault, FaultKind, StoreError, file_name, grouped, os_error_text, shown};

mod group;
mod weight;

pub use group::GroupSize;
pub use weight::{BLOCK_SCALE_SUFFIX, MERGED, SCALE_SUFFIX, WeightLocation};

pub use crate::scales::ScaleType;

/// The metadata key of the format stamps: a JSON object of tensor name -> format, as a string.
pub const STAMP_KEY: &str = "colibri.fmt";

/// The validated table of a model's tensors.
#[derive(Clone, Debug)]
pub struct Catalog {
    directory: PathBuf,
    files: Vec<FileInfo>,
    /// Sorted by name, pad tensors left out.
    tensors: Vec<TensorInfo>,
    /// What each file says of its tensors beside their entries, in the order of `files`.
    notes: Vec<FileNotes>,
    manifest: Option<Manifest>,
    /// Names of shards that are there and cannot be read.
    unreadable: Vec<String>,
}

/// What a file's metadata says of its tensors.
#[derive(Clone, Debug, Default)]
struct FileNotes {
    stamps: StringMap,
    /// Holds the table of entropy-coded int4 tensors.
    packed: bool,
}

impl Catalog {
    /// Reads the headers of the model at `path`: a folder, or a single safetensors file.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when no model lies there, else one error with every fault of every shard.
    pub fn open(path: &Path) -> Result<Catalog, StoreError> {
        let (catalog, errors) = Self::examine(path)?;
        StoreError::merge(path, errors)?;
        Ok(catalog)
    }

    /// Reads what can be read of the model at `path`: the table of the shards that are whole, and what is wrong with the
    /// others. Only a table without errors may be loaded from; the rest is for whoever looks for all faults at once.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when no model lies there, or the faults of its index or manifest.
    pub fn examine(path: &Path) -> Result<(Catalog, Vec<StoreError>), StoreError> {
        let Ok(facts) = std::fs::metadata(path) else {
            return Err(StoreError::NotFound {
                path: path.to_path_buf(),
                found: match listing::unfinished_beside(path) {
                    Some(folder) => format!("{} is a conversion into it that is not finished", folder.display()),
                    None => "there is no such file or folder".to_owned(),
                },
                fix: match listing::unfinished_beside(path) {
                    Some(_) => "run the same convert command again: it goes on where it stopped".to_owned(),
                    None => "check the path".to_owned(),
                },
            });
        };
        if facts.is_dir() {
            return Ok(Self::gather(path, listing::list(path)?, false));
        }
        // A file that the user names is opened as it is: the link rule guards names that come from the model.
        let mut errors = Vec::new();
        let catalog = Self::from_headers(path, vec![read_header(path, FileId(0))?], None, None, &mut errors);
        Ok((catalog, errors))
    }

    /// Reads the headers of the weight files that `listing` names in the folder `directory`, which may be a part of a model.
    ///
    /// # Errors
    /// One error with every fault of every shard.
    pub fn assemble(directory: &Path, listing: Listing) -> Result<Catalog, StoreError> {
        let (catalog, errors) = Self::gather(directory, listing, false);
        StoreError::merge(directory, errors)?;
        Ok(catalog)
    }

    /// As [`Catalog::assemble`], for whoever plans and reads no weight yet: a file that is not there counts as if it were
    /// when its header is (see [`listing::STUB_SUFFIX`]).
    ///
    /// # Errors
    /// As [`Catalog::assemble`].
    pub fn assemble_planned(directory: &Path, listing: Listing) -> Result<Catalog, StoreError> {
        let (catalog, errors) = Self::gather(directory, listing, true);
        StoreError::merge(directory, errors)?;
        Ok(catalog)
    }

    fn gather(directory: &Path, listing: Listing, stubs: bool) -> (Catalog, Vec<StoreError>) {
        let (mut headers, mut faults, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        let (mut errors, mut unreadable) = (Vec::new(), Vec::new());
        for name in &listing.names {
            let id = FileId(u32::try_from(headers.len()).unwrap_or(u32::MAX));
            let found = match (resolve(directory, name), stubs) {
                (Ok(None), true) => stub_of(directory, name).map(|stub| {
                    let path = directory.join(name);
                    stub.map(|stub| read_stub(&stub, &path, id))
                }),
                (found, _) => found.map(|path| path.map(|path| read_header(&path, id))),
            };
            match found {
                Ok(Some(Ok(header))) => headers.push(header),
                Ok(Some(Err(error))) => {
                    unreadable.push(name.clone());
                    errors.push(error);
                }
                Ok(None) => missing.push(name.clone()),
                Err(fault) => faults.push(fault),
            }
        }
        if !missing.is_empty() {
            faults.insert(0, listing::missing_shards(directory, &listing, &missing));
        }
        if let Some(manifest) = &listing.manifest {
            check_lengths(&headers, manifest, &mut faults);
            faults.extend(manifest.files.iter().filter_map(|listed| check_companion(directory, listed)));
        }
        if !faults.is_empty() {
            errors.insert(0, StoreError::Faulty { path: directory.to_path_buf(), faults });
        }
        // With a shard absent, every tensor of it would contradict the index.
        let index = listing.index.as_ref().filter(|_| errors.is_empty());
        let mut catalog = Self::from_headers(directory, headers, index, listing.manifest, &mut errors);
        catalog.unreadable = unreadable;
        (catalog, errors)
    }

    fn from_headers(
        directory: &Path,
        headers: Vec<Header>,
        index: Option<&StringMap>,
        manifest: Option<Manifest>,
        errors: &mut Vec<StoreError>,
    ) -> Catalog {
        let mut faults = Vec::new();
        let (mut files, mut tensors, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for header in headers {
            let stamps = read_stamps(&header).unwrap_or_else(|fault| {
                faults.push(fault);
                StringMap::default()
            });
            notes.push(FileNotes { stamps, packed: header.metadata.get(format::RANS_KEY).is_some() });
            files.push(header.file);
            tensors.extend(header.tensors.into_iter().filter(|tensor| !tensor.name.starts_with(PAD_PREFIX)));
        }
        tensors.sort_by(|left, right| (&left.name, left.file).cmp(&(&right.name, right.file)));
        let unreadable = Vec::new();
        let catalog = Catalog { directory: directory.to_path_buf(), files, tensors, notes, manifest, unreadable };
        catalog.check_repeats(&mut faults);
        if let Some(index) = index {
            catalog.check_index(index, &mut faults);
        }
        if !faults.is_empty() {
            errors.push(StoreError::Faulty { path: directory.to_path_buf(), faults });
        }
        catalog
    }

    /// No tensor may lie in two shards: which of them is meant would be a guess.
    fn check_repeats(&self, faults: &mut Vec<Fault>) {
        const SHOWN: usize = 8;
        let repeats = || self.tensors.windows(2).filter(|pair| pair[0].name == pair[1].name);
        for pair in repeats().take(SHOWN) {
            let expected = "one shard that holds it";
            let got = format!("also in {}", file_name(&self.file_of(&pair[0]).path));
            let path = &self.file_of(&pair[1]).path;
            faults.push(Fault::tensor(FaultKind::Corrupt, path, &pair[1].name, expected, &got));
        }
        let count = repeats().count();
        if count > SHOWN {
            let what = format!("{} more tensors lie in two shards", count - SHOWN);
            faults.push(Fault::file(FaultKind::Corrupt, &self.directory, what));
        }
    }

    /// Every tensor of the index must lie in the shard that the index names.
    fn check_index(&self, index: &StringMap, faults: &mut Vec<Fault>) {
        let mut astray: Vec<(&str, &str)> = Vec::new();
        for (tensor, file) in index.pairs() {
            let there = self.get(tensor).is_some_and(|info| self.file_of(info).path.ends_with(file));
            if !there && !tensor.starts_with(PAD_PREFIX) {
                astray.push((file, tensor));
            }
        }
        astray.sort_unstable();
        for group in astray.chunk_by(|left, right| left.0 == right.0) {
            let Some((file, first)) = group.first() else { continue };
            let what = format!("{} does not hold {} tensors that the index places there", shown(file), group.len());
            let mut fault = Fault::file(FaultKind::Corrupt, &self.directory.join(file), what)
                .why(format!("the first is {}", shown(first)))
                .fix("fetch that shard and the index again: they are of different versions");
            fault.tensor = Some((*first).to_owned());
            faults.push(fault);
        }
    }

    fn file_of(&self, tensor: &TensorInfo) -> &FileInfo {
        // Ids are given out by `assemble`, one for each file.
        &self.files[tensor.file.0 as usize]
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        let found = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
        self.tensors.get(found)
    }

    /// All tensors, sorted by name; pad tensors are left out.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The files, in the order of their ids.
    pub fn files(&self) -> &[FileInfo] {
        &self.files
    }

    /// Names of shards that are there and whose headers cannot be read; a catalog that was opened has none.
    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }

    /// The path the model was opened from.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What `colibri.json` says, when the container is ours.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// The format stamp of a tensor.
    pub fn stamp(&self, tensor: &str) -> Option<&str> {
        let file = self.get(tensor)?.file.0 as usize;
        self.notes.get(file)?.stamps.get(tensor)
    }

    /// Whether the tensor's file holds entropy-coded int4 tensors.
    fn is_packed(&self, tensor: &TensorInfo) -> bool {
        self.notes.get(tensor.file.0 as usize).is_some_and(|notes| notes.packed)
    }

    /// Bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Where the matrix `name` [rows, cols] lies and how it is stored; `group` is the container's
    /// ([`Catalog::group_size`]). The matrices of an expert may lie in one merged tensor.
    ///
    /// # Errors
    /// A missing, misshapen or unsupported tensor; the error names tensor, file, what was expected and what was found.
    pub fn weight(&self, name: &str, rows: usize, cols: usize, group: GroupSize) -> Result<WeightLocation, StoreError> {
        self.locate(name, &[rows, cols], group.columns()).map_err(|fault| StoreError::fault(&self.directory, fault))
    }

    /// Where the vector `name` of `len` values of a float type lies; a matrix of one row.
    ///
    /// # Errors
    /// As [`Catalog::weight`]; a quantised vector is unsupported.
    pub fn vector(&self, name: &str, len: usize) -> Result<WeightLocation, StoreError> {
        self.locate(name, &[len], None).map_err(|fault| StoreError::fault(&self.directory, fault))
    }

    /// The fault of a tensor that no shard holds, with what is known about absent shards.
    fn missing(&self, name: &str) -> Fault {
        let whole = self.files.iter().map(|file| file_name(&file.path));
        let names: Vec<String> = whole.chain(self.unreadable.iter().cloned()).collect();
        let mut why = match &self.manifest {
            Some(manifest) => format!("colibri.json lists {} and no others", grouped(manifest.shards.len() as u64)),
            None => listing::numbering_hint(&names),
        };
        if let Some(first) = self.unreadable.first() {
            let more = self.unreadable.len() - 1;
            let others = if more == 0 { String::new() } else { format!(" and {more} more") };
            why.push_str(&format!("; {}{others} cannot be read, and may hold it", shown(first)));
        }
        let partial = listing::partial_downloads(&self.directory);
        if partial > 0 {
            why.push_str(&format!("; found {partial} *.incomplete files of a download that stopped"));
        }
        let what = format!("tensor {} is in none of the {} shards", shown(name), grouped(names.len() as u64));
        let mut fault = Fault::file(FaultKind::Missing, &self.directory, what)
            .why(why)
            .fix("fetch the missing shards, or check that this is the model it says it is");
        fault.tensor = Some(name.to_owned());
        fault
    }
}

/// The stamps in a file's metadata.
fn read_stamps(header: &Header) -> Result<StringMap, Fault> {
    let Some(text) = header.metadata.get(STAMP_KEY) else { return Ok(StringMap::default()) };
    serde_json::from_str(text).map_err(|error| {
        let path = &header.file.path;
        Fault::file(FaultKind::Corrupt, path, format!("{}: {STAMP_KEY} is malformed", file_name(path)))
            .why(reason(&error))
    })
}

/// What is wrong with a file that travels with the weights: it must be there, in the folder itself. Its length and
/// digest are for whoever checks a download: people do edit templates and sampling defaults.
fn check_companion(directory: &Path, listed: &FileDigest) -> Option<Fault> {
    let name = shown(&listed.file);
    let path = match resolve(directory, &listed.file) {
        Ok(Some(path)) => path,
        Ok(None) => {
            let what = format!("{name} is missing; colibri.json lists it");
            let fault = Fault::file(FaultKind::Missing, &directory.join(&listed.file), what);
            return Some(fault.fix("fetch that file too, or convert the checkpoint again"));
        }
        Err(fault) => return Some(fault),
    };
    let corrupt = |what: String| {
        Fault::file(FaultKind::Corrupt, &path, what).fix("fetch that file again, or convert the checkpoint again")
    };
    match std::fs::metadata(&path) {
        Ok(facts) if !facts.is_file() => Some(corrupt(format!("{name} is not a file"))),
        Ok(_) => None,
        Err(error) => Some(corrupt(format!("{name} cannot be read: {}", os_error_text(&error)))),
    }
}

/// Each file must be as long as the manifest says.
fn check_lengths(headers: &[Header], manifest: &Manifest, faults: &mut Vec<Fault>) {
    for header in headers {
        let path = &header.file.path;
        let listed = manifest.shards.iter().find(|shard| path.ends_with(&shard.file));
        if let Some(shard) = listed
            && shard.bytes != header.file.bytes
        {
            let what = format!(
                "{} is {} bytes; colibri.json says {}",
                file_name(path),
                grouped(header.file.bytes),
                grouped(shard.bytes)
            );
            faults.push(
                Fault::file(FaultKind::Corrupt, path, what).fix("convert or fetch that file again, with colibri.json"),
            );
        }
    }
}
