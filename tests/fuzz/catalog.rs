//! Target `catalog`: the bytes choose matrices, formats, stamps, shards, and what is wrong with them; see [`Model`].
//!
//! Asserts: opening and examining agree; the table is sorted, unique and inside the files; the group size of a container
//! depends on no order; a located weight has exactly the bytes that its format needs, inside its file, of the stamped
//! format, and can be loaded; every refusal names its place by a known slug.

mod build;

use std::path::Path;

use colibri_kernels::format::Format;
use colibri_store::catalog::STAMP_KEY;
use colibri_store::container::PAD_PREFIX;
use colibri_store::{Catalog, GroupSize, SourceKind, Span, StoreError, WeightLocation, load_f32, open_source};

use super::check;
use super::input::Input;
use build::{Matrix, Model};

/// Weights of no more bytes are loaded too.
const LOADED: u64 = 1 << 16;

/// Runs the target.
pub fn run(data: &[u8]) {
    let folder = check::folder();
    let model = Model::choose(&mut Input(data));
    model.write(folder.path());
    let opened = Catalog::open(folder.path());
    match (&opened, Catalog::examine(folder.path())) {
        (Ok(_), Ok((_, errors))) => assert!(errors.is_empty(), "{errors:?}"),
        (Err(_), Ok((_, errors))) => assert!(!errors.is_empty()),
        (Err(_), Err(_)) => {}
        (Ok(_), Err(error)) => panic!("opened, and not examined: {error:?}"),
    }
    match opened {
        Ok(catalog) => accepted(&catalog, &model, folder.path()),
        Err(error) => check::store_refusal(&error, folder.path()),
    }
}

fn accepted(catalog: &Catalog, model: &Model, folder: &Path) {
    assert!(catalog.tensors().len() <= model.tensors());
    // An index does not name a shard without tensors.
    assert!((1..=model.shards()).contains(&catalog.files().len()));
    assert!(catalog.tensors().is_sorted_by(|left, right| left.name < right.name));
    for tensor in catalog.tensors() {
        assert!(!tensor.name.starts_with(PAD_PREFIX) && catalog.get(&tensor.name) == Some(tensor));
        assert_eq!(tensor.dtype.bytes(&tensor.shape), Some(tensor.bytes));
        inside(catalog, Span { file: tensor.file, offset: tensor.offset, bytes: tensor.bytes });
    }
    if let Err(error) = catalog.check_scales() {
        check::store_refusal(&error, folder);
    }
    let group = match group_size(catalog, &model.matrices) {
        Ok(group) => group,
        Err(error) => {
            check::store_refusal(&error, folder);
            GroupSize::NONE
        }
    };
    for Matrix { name, rows, cols, .. } in &model.matrices {
        match catalog.weight(name, *rows, *cols, group) {
            Ok(found) => {
                assert_eq!((found.rows, found.cols), (*rows, *cols));
                weight_holds(catalog, name, &found, group);
            }
            Err(error) => check::store_refusal(&error, folder),
        }
        match catalog.vector(name, *cols) {
            Ok(found) => {
                assert_eq!((found.rows, found.cols), (1, *cols));
                assert!(!found.format.quantised());
                weight_holds(catalog, name, &found, group);
            }
            Err(error) => check::store_refusal(&error, folder),
        }
    }
}

/// The group size of the container, which is the same in any order and fits the manifest.
fn group_size(catalog: &Catalog, matrices: &[Matrix]) -> Result<GroupSize, StoreError> {
    let listed = |matrix: &Matrix| (matrix.name.clone(), matrix.rows, matrix.cols);
    let forward: Vec<_> = matrices.iter().map(listed).collect();
    let of = |list: &mut dyn Iterator<Item = &(String, usize, usize)>| {
        catalog.group_size(list.map(|(name, rows, cols)| (name.as_str(), *rows, *cols)))
    };
    let found = of(&mut forward.iter());
    let reversed = of(&mut forward.iter().rev());
    assert_eq!(found.as_ref().map_err(StoreError::code), reversed.as_ref().map_err(StoreError::code));
    found
}

fn weight_holds(catalog: &Catalog, name: &str, found: &WeightLocation, group: GroupSize) {
    let (rows, cols) = (found.rows, found.cols);
    let bytes = |count: Option<usize>| count.map(|count| count as u64);
    assert_eq!(bytes(found.format.code_bytes(rows, cols)), Some(found.codes.bytes), "{found:?}");
    let scales = found.format.scale_count(rows, cols).and_then(|count| count.checked_mul(found.scale_type.bytes()));
    assert_eq!(found.scales.is_some(), found.format.has_scales());
    assert_eq!(bytes(scales), Some(found.scales.map_or(0, |span| span.bytes)), "{found:?}");
    inside(catalog, found.codes);
    found.scales.into_iter().for_each(|span| inside(catalog, span));
    if let Format::Int4Grouped { group: columns } = found.format {
        assert_eq!(group.columns(), Some(columns));
    }
    if let Some(stamp) = catalog.stamp(name) {
        // A single group in each row is a scale for each row.
        let grouped = stamp == Format::Q4G64.stamp() && found.format == Format::Int4Row;
        assert!(stamp == found.format.stamp() || grouped, "{stamp} of {STAMP_KEY} is read as {:?}", found.format);
    }
    // Decoding takes f32 scales; others are widened by whoever loads them.
    let widened = found.scales.is_some() && found.scale_type != colibri_store::ScaleType::F32;
    if found.bytes() <= LOADED && rows.saturating_mul(cols) <= 4 * LOADED as usize && !widened {
        let source = open_source(SourceKind::Buffered, catalog.files()).expect("files that were just read open again");
        let values = load_f32(&*source, found).expect("what is located can be loaded");
        assert_eq!(values.len(), rows * cols);
    }
}

fn inside(catalog: &Catalog, span: Span) {
    let file = &catalog.files()[span.file.0 as usize];
    assert!(span.offset >= 8 && span.offset.checked_add(span.bytes).is_some_and(|end| end <= file.bytes), "{span:?}");
}
