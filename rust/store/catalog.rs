//! All shards of a model as one table: name -> location, validated once, every fault of every shard in one error.
//!
//! Refuses a model with a missing or damaged shard, a tensor that lies in two shards, and an index that disagrees with the
//! shards. What comes out is sorted by name and can be trusted; only whether a tensor is what the MODEL needs is asked
//! later, by [`Catalog::weight`] and [`Catalog::vector`].

use std::path::{Path, PathBuf};

use colibri_kernels::format::Format;

use crate::container::json::StringMap;
use crate::container::listing::{self, Listing};
use crate::container::manifest::{FileDigest, Manifest};
use crate::container::safetensors::{Header, read_header};
use crate::container::{Dtype, FileId, FileInfo, PAD_PREFIX, TensorInfo, format, resolve};
use crate::error::{Fault, FaultKind, StoreError, file_name, grouped, os_error_text, shown};
use crate::source::Span;

/// The metadata key of the format stamps: a JSON object of tensor name -> format, as a string.
pub const STAMP_KEY: &str = "colibri.fmt";

/// The suffix of the scales that belong to a quantised weight.
pub const SCALE_SUFFIX: &str = ".qs";

/// Where a weight lies and how it is stored: what the engine sees, whatever the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightLocation {
    /// The storage format.
    pub format: Format,
    /// Rows (outputs); 1 for a vector.
    pub rows: usize,
    /// Columns (inputs).
    pub cols: usize,
    /// The codes, or the values of a float format. // [rows, cols]
    pub codes: Span,
    /// The f32 scales of a quantised format.
    pub scales: Option<Span>,
}

impl WeightLocation {
    /// Bytes of codes and scales together.
    pub fn bytes(&self) -> u64 {
        self.codes.bytes.saturating_add(self.scales.map_or(0, |span| span.bytes))
    }
}

/// The validated table of a model's tensors.
#[derive(Clone, Debug)]
pub struct Catalog {
    directory: PathBuf,
    files: Vec<FileInfo>,
    /// Sorted by name, pad tensors left out.
    tensors: Vec<TensorInfo>,
    /// The stamps of each file, in the order of `files`.
    stamps: Vec<StringMap>,
    manifest: Option<Manifest>,
}

impl Catalog {
    /// Reads the headers of the model at `path`: a folder, or a single safetensors file.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] when no model lies there, else one error with every fault of every shard.
    pub fn open(path: &Path) -> Result<Catalog, StoreError> {
        let Ok(facts) = std::fs::metadata(path) else {
            return Err(StoreError::NotFound {
                path: path.to_path_buf(),
                found: "there is no such file or folder".to_owned(),
                fix: "check the path".to_owned(),
            });
        };
        if facts.is_dir() {
            return Self::assemble(path, listing::list(path)?);
        }
        // A file that the user names is opened as it is: the link rule guards names that come from the model.
        Self::from_headers(path, vec![read_header(path, FileId(0))?], None, None)
    }

    fn assemble(directory: &Path, listing: Listing) -> Result<Catalog, StoreError> {
        let (mut headers, mut faults, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for name in &listing.names {
            match resolve(directory, name) {
                Ok(Some(path)) => {
                    let id = FileId(u32::try_from(headers.len()).unwrap_or(u32::MAX));
                    match read_header(&path, id) {
                        Ok(header) => headers.push(header),
                        Err(StoreError::Faulty { faults: list, .. }) => faults.extend(list),
                        Err(other) => return Err(other),
                    }
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
        StoreError::from_faults(directory, faults)?;
        Self::from_headers(directory, headers, listing.index.as_ref(), listing.manifest)
    }

    fn from_headers(
        directory: &Path,
        headers: Vec<Header>,
        index: Option<&StringMap>,
        manifest: Option<Manifest>,
    ) -> Result<Catalog, StoreError> {
        let mut faults = Vec::new();
        let (mut files, mut tensors, mut stamps) = (Vec::new(), Vec::new(), Vec::new());
        for header in headers {
            stamps.push(read_stamps(&header).unwrap_or_else(|fault| {
                faults.push(fault);
                StringMap::default()
            }));
            files.push(header.file);
            tensors.extend(header.tensors.into_iter().filter(|tensor| !tensor.name.starts_with(PAD_PREFIX)));
        }
        tensors.sort_by(|left, right| (&left.name, left.file).cmp(&(&right.name, right.file)));
        let catalog = Catalog { directory: directory.to_path_buf(), files, tensors, stamps, manifest };
        catalog.check_repeats(&mut faults);
        if let Some(index) = index {
            catalog.check_index(index, &mut faults);
        }
        StoreError::from_faults(directory, faults)?;
        Ok(catalog)
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
        self.stamps.get(file)?.get(tensor)
    }

    /// Bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Where the matrix `name` [rows, cols] lies and how it is stored.
    ///
    /// # Errors
    /// A missing, misshapen or unsupported tensor; the error names tensor, file, what was expected and what was found.
    pub fn weight(&self, name: &str, rows: usize, cols: usize) -> Result<WeightLocation, StoreError> {
        self.locate(name, &[rows, cols]).map_err(|fault| StoreError::fault(&self.directory, fault))
    }

    /// Where the vector `name` of `len` values of a float type lies; a matrix of one row.
    ///
    /// # Errors
    /// As [`Catalog::weight`]; a quantised vector is unsupported.
    pub fn vector(&self, name: &str, len: usize) -> Result<WeightLocation, StoreError> {
        self.locate(name, &[len]).map_err(|fault| StoreError::fault(&self.directory, fault))
    }

    fn locate(&self, name: &str, shape: &[usize]) -> Result<WeightLocation, Fault> {
        let Some(tensor) = self.get(name) else { return Err(self.missing(name)) };
        let path = &self.file_of(tensor).path;
        let fault = |kind, expected: &str, got: &str| Fault::tensor(kind, path, name, expected, got);
        let float = match tensor.dtype {
            Dtype::F32 => Some(Format::F32),
            Dtype::Bf16 => Some(Format::Bf16),
            Dtype::F16 => Some(Format::F16),
            _ => None,
        };
        let scales = self.get(&format!("{name}{SCALE_SUFFIX}"));
        let (rows, cols) = match *shape {
            [rows, cols] => (rows, cols),
            _ => (1, shape.first().copied().unwrap_or(0)),
        };
        let codes = span_of(tensor);
        if let Some(format) = float {
            let same = tensor.shape.len() == shape.len()
                && tensor.shape.iter().zip(shape).all(|(found, wanted)| usize::try_from(*found) == Ok(*wanted));
            if !same {
                let got = format!("{} {:?}", tensor.dtype.name(), tensor.shape);
                return Err(fault(FaultKind::Corrupt, &format!("shape {shape:?}"), &got));
            }
            if let Some(stamp) = self.stamp(name)
                && stamp != format.stamp()
            {
                return Err(fault(FaultKind::Corrupt, &format!("{} as its type says", format.stamp()), &shown(stamp)));
            }
            if scales.is_some() {
                return Err(fault(FaultKind::Corrupt, "no scales beside a float tensor", "a tensor of scales"));
            }
            return Ok(WeightLocation { format, rows, cols, codes, scales: None });
        }
        match tensor.dtype {
            Dtype::U8 | Dtype::I8 if shape.len() == 2 => self
                .quantised(tensor, scales, (rows, cols))
                .map_err(|(kind, expected, got)| fault(kind, &expected, &got)),
            Dtype::U8 | Dtype::I8 => {
                Err(fault(FaultKind::Corrupt, &format!("F32, BF16 or F16 {shape:?}"), tensor.dtype.name()))
            }
            Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::F8E8m0 | Dtype::F8E4m3Fnuz | Dtype::F8E5m2Fnuz | Dtype::F4 => {
                let got = format!("FP8 or FP4 weights ({}), which are not supported yet", tensor.dtype.name());
                Err(fault(FaultKind::Unsupported, "F32, BF16, F16 or U8 with scales", &got))
            }
            other => Err(fault(FaultKind::Unsupported, "F32, BF16, F16 or U8 with scales", other.name())),
        }
    }

    /// The location of a quantised matrix, from its byte counts and its stamp.
    fn quantised(
        &self,
        tensor: &TensorInfo,
        scales: Option<&TensorInfo>,
        (rows, cols): (usize, usize),
    ) -> Result<WeightLocation, (FaultKind, String, String)> {
        let Some(scales) = scales else {
            let expected = format!("its scales in {}", shown(&format!("{}{SCALE_SUFFIX}", tensor.name)));
            return Err((FaultKind::Missing, expected, "no such tensor".to_owned()));
        };
        if scales.dtype != Dtype::F32 {
            return Err((FaultKind::Corrupt, "scales of type F32".to_owned(), scales.dtype.name().to_owned()));
        }
        let stamp = self.stamp(&tensor.name);
        let format = format::decide(rows as u64, cols as u64, tensor.bytes, scales.bytes, stamp)
            .map_err(|refusal| (refusal.kind, refusal.expected, refusal.got))?;
        Ok(WeightLocation { format, rows, cols, codes: span_of(tensor), scales: Some(span_of(scales)) })
    }

    /// The fault of a tensor that no shard holds, with what is known about absent shards.
    fn missing(&self, name: &str) -> Fault {
        let names: Vec<String> = self.files.iter().map(|file| file_name(&file.path)).collect();
        let mut why = listing::numbering_hint(&names);
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

fn span_of(tensor: &TensorInfo) -> Span {
    Span { file: tensor.file, offset: tensor.offset, bytes: tensor.bytes }
}

/// The stamps in a file's metadata.
fn read_stamps(header: &Header) -> Result<StringMap, Fault> {
    let Some(text) = header.metadata.get(STAMP_KEY) else { return Ok(StringMap::default()) };
    serde_json::from_str(text).map_err(|error| {
        let path = &header.file.path;
        Fault::file(FaultKind::Corrupt, path, format!("{}: {STAMP_KEY} is malformed", file_name(path)))
            .why(error.to_string())
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
