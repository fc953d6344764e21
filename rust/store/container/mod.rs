//! What a container is made of: files, tensors and element types. Headers are read here; payload bytes never are.
//!
//! Refuses names that leave the model's folder. [`resolve`] holds the rule for links: a link may point anywhere inside
//! the model's own folder, or inside the Hugging Face cache repository (`models--org--name`) the folder belongs to,
//! because that cache stores a snapshot as links to blobs. Every other link is refused.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Fault, FaultKind, file_name, human_bytes, os_error_text, shown};

pub mod format;
pub mod json;
pub mod listing;
pub mod manifest;
pub mod record;
pub mod safetensors;
pub mod writer;

/// Tensors of this prefix only fill holes between records, because the format forbids holes; nothing reads them.
pub const PAD_PREFIX: &str = "__pad__.";

/// Which file of a catalog a tensor lies in: an index into [`crate::Catalog::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A file of a container and the length it had when its header was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Where it lies.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Where a tensor lies and what it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the checkpoint.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The shape, outermost dimension first.
    pub shape: Vec<u64>,
    /// The file it lies in.
    pub file: FileId,
    /// Offset of the first byte from the start of the FILE.
    pub offset: u64,
    /// Length in bytes; equals the product of `shape` times the element size.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        // The product was checked when the header was read.
        self.shape.iter().product()
    }
}

/// Declares [`Dtype`] with the name and the width in bits of each type, so that the three cannot drift apart.
macro_rules! dtypes {
    ($($(#[$note:meta])* $variant:ident = $name:literal, $bits:literal;)*) => {
        /// An element type of the safetensors format. Every type is known by size; only some can be read as weights.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Dtype { $($(#[$note])* $variant,)* }

        impl Dtype {
            /// Every type.
            pub const ALL: &'static [Dtype] = &[$(Dtype::$variant,)*];

            /// The type of this name in a header.
            pub fn parse(name: &str) -> Option<Dtype> {
                match name { $($name => Some(Dtype::$variant),)* _ => None }
            }

            /// The name in a header.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name,)* }
            }

            /// Width of one element in bits.
            pub fn bits(self) -> u64 {
                match self { $(Dtype::$variant => $bits,)* }
            }
        }
    };
}

dtypes! {
    /// IEEE 754 binary32.
    F32 = "F32", 32;
    /// bfloat16.
    Bf16 = "BF16", 16;
    /// IEEE 754 binary16.
    F16 = "F16", 16;
    /// Unsigned byte; also the carrier of quantised codes.
    U8 = "U8", 8;
    /// Signed byte.
    I8 = "I8", 8;
    /// IEEE 754 binary64.
    F64 = "F64", 64;
    /// Float with 4 exponent and 3 mantissa bits, no infinity.
    F8E4m3 = "F8_E4M3", 8;
    /// Float with 5 exponent and 2 mantissa bits.
    F8E5m2 = "F8_E5M2", 8;
    /// A power of two (shared exponents).
    F8E8m0 = "F8_E8M0", 8;
    /// `F8_E4M3` without negative zero.
    F8E4m3Fnuz = "F8_E4M3FNUZ", 8;
    /// `F8_E5M2` without negative zero.
    F8E5m2Fnuz = "F8_E5M2FNUZ", 8;
    /// Float of six bits, 2 of them exponent.
    F6E2m3 = "F6_E2M3", 6;
    /// Float of six bits, 3 of them exponent.
    F6E3m2 = "F6_E3M2", 6;
    /// Float of four bits.
    F4 = "F4", 4;
    /// Boolean, one byte each.
    Bool = "BOOL", 8;
    /// Signed 16-bit integer.
    I16 = "I16", 16;
    /// Unsigned 16-bit integer.
    U16 = "U16", 16;
    /// Signed 32-bit integer.
    I32 = "I32", 32;
    /// Unsigned 32-bit integer.
    U32 = "U32", 32;
    /// Signed 64-bit integer.
    I64 = "I64", 64;
    /// Unsigned 64-bit integer.
    U64 = "U64", 64;
    /// Complex number of two binary32.
    C64 = "C64", 64;
}

impl Dtype {
    /// Bytes of a tensor of `shape`; `None` when the count overflows or does not fill whole bytes.
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        // An extent of zero makes the tensor empty, but only when the other extents are sane as well.
        let elements = shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent))?;
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

/// Whether `name` is a plain file name: one path component, no separator of any system, no NUL.
pub fn plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0']) && !name.contains(':')
}

/// The path of the file `name` of the model in `directory`, after the link rule of this module.
///
/// `Ok(None)` when no such file exists.
///
/// # Errors
/// A fault when the name is no plain file name, or when the file is a link that leaves the folder.
pub fn resolve(directory: &Path, name: &str) -> Result<Option<PathBuf>, Fault> {
    let path = directory.join("?");
    if !plain_file_name(name) {
        return Err(Fault::file(FaultKind::Corrupt, &path, format!("{} is not a plain file name", shown(name)))
            .why("a model's files must lie in its own folder")
            .fix("name only files of the model's folder in the index"));
    }
    let path = directory.join(name);
    let Ok(facts) = std::fs::symlink_metadata(&path) else { return Ok(None) };
    if !facts.file_type().is_symlink() {
        return Ok(Some(path));
    }
    let (Ok(target), Ok(home)) = (path.canonicalize(), directory.canonicalize()) else { return Ok(None) };
    let cache = cache_repository(&home);
    if target.starts_with(&home) || cache.is_some_and(|cache| target.starts_with(cache)) {
        return Ok(Some(path));
    }
    Err(Fault::file(FaultKind::Corrupt, &path, format!("{} is a link that leaves the model's folder", shown(name)))
        .why(format!("it points to {}", target.display()))
        .fix("put the file itself into the folder, or open the folder it lies in"))
}

/// The bytes of a small file of a model, such as a configuration, an index or a manifest, of at most `limit` bytes. A pipe
/// or a device is refused before it is opened: it might never answer, or never end.
///
/// # Errors
/// A fault when the file cannot be read, is no regular file or is larger than `limit`.
pub fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, Fault> {
    let name = file_name(path);
    let fault = |what: String| Fault::file(FaultKind::Corrupt, path, what);
    let unreadable = |error: std::io::Error| fault(format!("{name} cannot be read: {}", os_error_text(&error)));
    let facts = std::fs::metadata(path).map_err(unreadable)?;
    if !facts.is_file() {
        return Err(fault(format!("{name} is not a file")));
    }
    if facts.len() > limit {
        return Err(fault(format!("{name} is {}; at most {} are read", human_bytes(facts.len()), human_bytes(limit))));
    }
    // A file that grows meanwhile is cut at the limit as well.
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(unreadable)?;
    Ok(bytes)
}

/// The Hugging Face cache repository (`…/models--org--name`) that `directory` is a snapshot of.
pub(crate) fn cache_repository(directory: &Path) -> Option<&Path> {
    let snapshots = directory.parent()?;
    let repository = snapshots.parent()?;
    let named = repository.file_name()?.to_str()?.starts_with("models--");
    (named && snapshots.file_name()? == "snapshots").then_some(repository)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_is_found_by_its_name_and_sized() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::parse(dtype.name()), Some(*dtype));
            assert_eq!(dtype.bytes(&[8, 3]), Some(24 * dtype.bits() / 8));
            assert_eq!(dtype.bytes(&[u64::MAX, u64::MAX]), None);
        }
        assert_eq!(Dtype::parse("F12"), None);
        assert_eq!(Dtype::F4.bytes(&[3]), None);
        assert_eq!(Dtype::F32.bytes(&[]), Some(4));
    }

    #[test]
    fn only_plain_names_are_file_names() {
        assert!(plain_file_name("model-00001-of-00002.safetensors"));
        for name in ["", ".", "..", "../x", "/etc/passwd", "a\0b", "sub/../x", "a\\b", "C:x"] {
            assert!(!plain_file_name(name), "{name:?}");
        }
    }
}
