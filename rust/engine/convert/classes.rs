//! The classes of tensors that share a storage format, and the format that each gets.

use colibri_kernels::format::Format;

use super::ConvertOptions;
use crate::names::{Shape, TensorClass, TensorSlot};

/// A class of tensors that share a storage format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StorageClass {
    /// Routed experts.
    Experts,
    /// Attention, dense feed-forward parts, shared experts.
    Dense,
    /// The token embedding.
    Embedding,
    /// The head.
    Head,
    /// Indexers of sparse attention.
    Indexer,
    /// Routed experts of the multi-token-prediction layer.
    MtpExperts,
    /// Other matrices of the multi-token-prediction layer.
    Mtp,
    /// Routers, norms and biases: small, and their errors would reach everything.
    Kept,
}

/// A class, its name in report and manifest, and its format.
pub(super) struct ClassEntry {
    pub class: StorageClass,
    pub name: &'static str,
    pub format: fn(&ConvertOptions) -> Format,
}

/// Every class, in the order of the report.
pub(super) const CLASSES: &[ClassEntry] = &[
    ClassEntry { class: StorageClass::Experts, name: "experts", format: |options| options.experts },
    ClassEntry { class: StorageClass::Dense, name: "dense", format: |options| options.dense },
    ClassEntry { class: StorageClass::Embedding, name: "embedding", format: |options| options.embeddings },
    ClassEntry { class: StorageClass::Head, name: "head", format: |options| options.embeddings },
    ClassEntry { class: StorageClass::Indexer, name: "indexer", format: |_| Format::Int8Row },
    ClassEntry { class: StorageClass::MtpExperts, name: "mtp_experts", format: |options| options.mtp },
    ClassEntry { class: StorageClass::Mtp, name: "mtp", format: |options| options.mtp },
    ClassEntry { class: StorageClass::Kept, name: "kept", format: |_| Format::F32 },
];

/// The class of a tensor. Vectors are always kept.
pub(super) fn class_of(slot: &TensorSlot) -> StorageClass {
    if matches!(slot.shape, Shape::Vector { .. }) {
        return StorageClass::Kept;
    }
    match slot.class {
        TensorClass::Norm | TensorClass::Router => StorageClass::Kept,
        TensorClass::Indexer => StorageClass::Indexer,
        TensorClass::Embedding => StorageClass::Embedding,
        TensorClass::Head => StorageClass::Head,
        TensorClass::Expert if slot.mtp => StorageClass::MtpExperts,
        TensorClass::Expert => StorageClass::Experts,
        TensorClass::MtpProjection => StorageClass::Mtp,
        TensorClass::Attention | TensorClass::Dense | TensorClass::SharedExpert if slot.mtp => StorageClass::Mtp,
        TensorClass::Attention | TensorClass::Dense | TensorClass::SharedExpert => StorageClass::Dense,
    }
}

/// Index of a tensor's class in [`CLASSES`].
pub(super) fn class_index(slot: &TensorSlot) -> usize {
    let class = class_of(slot);
    // The table has a line for every variant (tested).
    CLASSES.iter().position(|entry| entry.class == class).unwrap_or(CLASSES.len() - 1)
}

/// The class that conversion counts a tensor to, by its name, and the format that it would get.
pub(crate) fn target_of(slot: &TensorSlot, options: &ConvertOptions) -> (&'static str, Format) {
    let entry = &CLASSES[class_index(slot)];
    (entry.name, (entry.format)(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_one_line_and_a_format_that_is_written() {
        let options = ConvertOptions::default();
        for class in [
            StorageClass::Experts,
            StorageClass::Dense,
            StorageClass::Embedding,
            StorageClass::Head,
            StorageClass::Indexer,
            StorageClass::MtpExperts,
            StorageClass::Mtp,
            StorageClass::Kept,
        ] {
            let lines: Vec<&ClassEntry> = CLASSES.iter().filter(|entry| entry.class == class).collect();
            assert_eq!(lines.len(), 1);
            let format = (lines[0].format)(&options);
            assert!(crate::convert::TARGET_FORMATS.contains(&format), "{}", lines[0].name);
        }
    }
}
