//! `colibri.json`: what a converted container is, and what belongs to it.
//!
//! Owns the format version, the provenance, the quantisation of each tensor class, and the list of files with sizes and
//! SHA-256 digests. It is written last, so a folder that has one was finished. Refuses a newer format version, a file
//! name that is no plain name, and a storage format or scale rule that is not known. Whoever opens the container checks that
//! every listed file is there and that shards have their length; digests are compared by nobody on opening, since that
//! would read the whole model. The tensors themselves are described by the shards' own headers: where the two disagree,
//! the reader reports a fault.

use std::path::Path;

use colibri_kernels::format::{Format, ScaleRule};
use serde::{Deserialize, Serialize};

use super::json::reason;
use super::plain_file_name;
use crate::error::{Fault, FaultKind, StoreError, shown};

/// Name of the manifest in a container's folder.
pub const MANIFEST_NAME: &str = "colibri.json";
/// Value of the manifest's `format` key.
pub const FORMAT: &str = "colibri";
/// The format version written, and the newest one read.
pub const FORMAT_VERSION: u32 = 1;

/// Value of `scale_rule` in a container whose codes and scales were taken over as they were.
pub const AS_SOURCE: &str = "as source";

/// What a converted container is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always [`FORMAT`].
    pub format: String,
    /// Version of the layout of records and shards.
    pub format_version: u32,
    /// Program and version that wrote the container.
    pub writer: String,
    /// Where the weights came from.
    pub source: SourceModel,
    /// How each class of tensors is stored, in the order of the classes; a class whose tensors differ has several lines.
    pub quantisation: Vec<ClassFormat>,
    /// How scales were chosen: `search`, `absmax`, or [`AS_SOURCE`].
    pub scale_rule: String,
    /// Whether the layer of multi-token prediction is in the container.
    pub multi_token_prediction: bool,
    /// The weight files, in the order in which their tensors are used.
    pub shards: Vec<FileDigest>,
    /// The files beside the weights (configuration, tokenizer, template).
    pub files: Vec<FileDigest>,
}

/// Where a container's weights came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceModel {
    /// Name of the checkpoint's folder.
    pub name: String,
    /// `model_type` of its configuration.
    pub model_type: String,
    /// Bytes of its weight files.
    pub bytes: u64,
}

/// How a class of tensors is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassFormat {
    /// The class: `experts`, `dense`, `embedding`, ...
    pub class: String,
    /// Format name as on the command line: `q4g64`, `q8`, `f32`, ...
    pub format: String,
}

/// A file of the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Plain file name.
    pub file: String,
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, lower-case hexadecimal.
    pub sha256: String,
}

impl Manifest {
    /// Parses and checks a manifest's text.
    ///
    /// # Errors
    /// The fault that was found.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, Fault> {
        /// The two keys that say whether the rest can be understood at all.
        #[derive(Deserialize)]
        struct Version {
            format: String,
            format_version: u32,
        }
        let malformed = |error: &serde_json::Error| {
            Fault::file(FaultKind::Corrupt, path, format!("{MANIFEST_NAME} is malformed"))
                .why(reason(error))
                .fix("convert the checkpoint again")
        };
        let version: Version = serde_json::from_slice(text).map_err(|error| malformed(&error))?;
        if version.format != FORMAT || version.format_version == 0 || version.format_version > FORMAT_VERSION {
            let what = format!("{MANIFEST_NAME} has format version {}", version.format_version);
            return Err(Fault::file(FaultKind::Unsupported, path, what)
                .why(format!("this program reads {FORMAT} containers up to version {FORMAT_VERSION}"))
                .fix("update colibri, or convert the checkpoint again"));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(|error| malformed(&error))?;
        manifest.refusal(path).map_or(Ok(manifest), Err)
    }

    /// What it says that cannot be: the first such thing.
    fn refusal(&self, path: &Path) -> Option<Fault> {
        let fault = |kind, what: String| Fault::file(kind, path, format!("{MANIFEST_NAME} {what}"));
        let mut listed = self.shards.iter().chain(&self.files);
        if let Some(bad) = listed.find(|listed| !plain_file_name(&listed.file)) {
            let what = format!("names the file {}, which is not a plain file name", shown(&bad.file));
            let why = "a model's files must lie in its own folder";
            return Some(fault(FaultKind::Corrupt, what).why(why).fix("do not use this model as it is"));
        }
        let unknown = |what: &str, name: &str| {
            let text = format!("gives the {what} {}, which is not known", shown(name));
            Some(fault(FaultKind::Unsupported, text).fix("update colibri, or convert the checkpoint again"))
        };
        if let Some(bad) = self.quantisation.iter().find(|class| Format::parse(&class.format).is_none()) {
            return unknown("storage format", &bad.format);
        }
        if self.scale_rule != AS_SOURCE && ScaleRule::parse(&self.scale_rule).is_none() {
            return unknown("scale rule", &self.scale_rule);
        }
        None
    }

    /// The text of the manifest, with a line for each entry so that people can read and compare it.
    ///
    /// # Errors
    /// Never for a manifest that was read or filled by conversion.
    pub fn to_json(&self) -> Result<Vec<u8>, StoreError> {
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|error| StoreError::Internal { what: format!("{MANIFEST_NAME} cannot be written: {error}") })?;
        text.push(b'\n');
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Manifest {
        let digest = |file: &str| FileDigest { file: file.to_owned(), bytes: 8192, sha256: "00".repeat(32) };
        Manifest {
            format: FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            writer: "colibri 0".to_owned(),
            source: SourceModel { name: "tiny".to_owned(), model_type: "abacus".to_owned(), bytes: 5 },
            quantisation: vec![ClassFormat { class: "experts".to_owned(), format: "q4g64".to_owned() }],
            scale_rule: "search".to_owned(),
            multi_token_prediction: true,
            shards: vec![digest("dense-00001.safetensors"), digest("experts-00001.safetensors")],
            files: vec![digest("config.json")],
        }
    }

    #[test]
    fn a_manifest_reads_back_as_written() {
        let manifest = example();
        let text = manifest.to_json().unwrap();
        assert_eq!(Manifest::parse(&text, Path::new(MANIFEST_NAME)).unwrap(), manifest);
        let mut taken_over = example();
        AS_SOURCE.clone_into(&mut taken_over.scale_rule);
        taken_over.quantisation.push(ClassFormat { class: "experts".to_owned(), format: "fp8".to_owned() });
        let text = taken_over.to_json().unwrap();
        assert_eq!(Manifest::parse(&text, Path::new(MANIFEST_NAME)).unwrap(), taken_over);
    }

    #[test]
    fn names_formats_and_rules_that_cannot_be_are_refused() {
        let path = Path::new(MANIFEST_NAME);
        let refused = |edit: &dyn Fn(&mut Manifest)| {
            let mut manifest = example();
            edit(&mut manifest);
            Manifest::parse(&manifest.to_json().unwrap(), path).unwrap_err()
        };
        for name in ["../x", "/etc/passwd", "", "a/b", "a\\b", "x\0"] {
            for fault in [
                refused(&|manifest| manifest.files[0].file = name.to_owned()),
                refused(&|manifest| manifest.shards[1].file = name.to_owned()),
            ] {
                assert!(fault.kind == FaultKind::Corrupt && fault.what.contains("plain file name"), "{fault}");
            }
        }
        for name in ["", "q4", "q4g0", "Q8", "zip"] {
            let fault = refused(&|manifest| manifest.quantisation[0].format = name.to_owned());
            assert!(fault.kind == FaultKind::Unsupported && fault.what.contains("storage format"), "{fault}");
        }
        let fault = refused(&|manifest| manifest.scale_rule = "dice".to_owned());
        assert!(fault.kind == FaultKind::Unsupported && fault.what.contains("`dice`"), "{fault}");
    }

    #[test]
    fn newer_and_malformed_manifests_are_refused() {
        let path = Path::new(MANIFEST_NAME);
        let mut newer = example();
        newer.format_version = FORMAT_VERSION + 1;
        let fault = Manifest::parse(&newer.to_json().unwrap(), path).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Unsupported);
        // A newer version may have any other keys.
        let fault = Manifest::parse(br#"{"format":"colibri","format_version":99,"tiles":16}"#, path).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Unsupported);
        for text in [&b"[]"[..], b"{", b"null", br#"{"format":"colibri","format_version":1}"#, b"\xff"] {
            assert_eq!(Manifest::parse(text, path).unwrap_err().kind, FaultKind::Corrupt);
        }
    }
}
