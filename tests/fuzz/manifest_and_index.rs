//! Target `manifest_and_index`: `colibri.json` up to the first NUL byte, `model.safetensors.index.json` after it, in a
//! folder with two small shards, `a.safetensors` and `b.safetensors`; an empty part is no file.
//!
//! Asserts: a manifest that parses names plain files and known formats, and parses to the same when it is written again;
//! a listing names plain files only, sorted, each once, no more than the text can hold, and keeps its index; opening the
//! folder finds what is listed or refuses by name.

use colibri_kernels::format::Format;
use colibri_store::Catalog;
use colibri_store::container::listing::{self, INDEX_NAME, Listing};
use colibri_store::container::manifest::{MANIFEST_NAME, Manifest};
use colibri_store::container::{plain_file_name, resolve};
use serde_json::{Map, Value};

use super::check;

/// What the shards hold: a tensor of two bytes, named as its shard.
const SHARDS: [&str; 2] = ["a", "b"];

/// Runs the target.
pub fn run(data: &[u8]) {
    let folder = check::folder();
    let (manifest, index) = data.iter().position(|byte| *byte == 0).map_or((data, &[][..]), |at| {
        let (manifest, index) = data.split_at(at);
        (manifest, &index[1..])
    });
    for name in SHARDS {
        let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}}}"#);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[0; 2]);
        check::write(folder.path(), &format!("{name}.safetensors"), &bytes);
    }
    let path = folder.path().join(MANIFEST_NAME);
    let parsed = Manifest::parse(manifest, &path);
    match &parsed {
        Ok(parsed) => manifest_holds(parsed, manifest.len()),
        Err(fault) => check::fault(fault, folder.path()),
    }
    if !manifest.is_empty() {
        check::write(folder.path(), MANIFEST_NAME, manifest);
    }
    if !index.is_empty() {
        check::write(folder.path(), INDEX_NAME, index);
    }
    match listing::list(folder.path()) {
        Ok(listing) => listing_holds(&listing, data.len(), folder.path()),
        Err(error) => check::store_refusal(&error, folder.path()),
    }
    match Catalog::open(folder.path()) {
        Ok(catalog) => {
            assert!(manifest.is_empty() || catalog.manifest() == parsed.as_ref().ok());
            assert!((1..=SHARDS.len()).contains(&catalog.files().len()));
            for (tensor, name) in catalog.tensors().zip(SHARDS) {
                assert!(catalog.files().len() == 1 || tensor.name == name);
            }
        }
        Err(error) => check::store_refusal(&error, folder.path()),
    }
}

fn manifest_holds(manifest: &Manifest, text_bytes: usize) {
    let listed = || manifest.shards.iter().chain(&manifest.files);
    assert!(listed().all(|file| plain_file_name(&file.file)));
    assert!(manifest.quantisation.iter().all(|class| Format::parse(&class.format).is_some()));
    assert!(listed().count() + manifest.quantisation.len() <= text_bytes);
    let text = manifest.to_json().expect("what was read can be written");
    let again = Manifest::parse(&text, MANIFEST_NAME.as_ref());
    assert_eq!(again.as_ref(), Ok(manifest));
}

fn listing_holds(listing: &Listing, text_bytes: usize, folder: &std::path::Path) {
    assert!(!listing.names.is_empty() && listing.names.len() <= text_bytes.max(SHARDS.len()));
    assert!(listing.names.is_sorted_by(|left, right| left < right));
    for name in &listing.names {
        assert!(plain_file_name(name));
        let found = resolve(folder, name).expect("a plain name of no link is never refused");
        assert!(found.is_none_or(|path| path.parent() == Some(folder)));
    }
    let Some(index) = &listing.index else { return };
    let pairs = index.pairs();
    assert!(pairs.len() <= text_bytes && pairs.is_sorted_by(|left, right| left.0 < right.0));
    assert!(pairs.iter().all(|(_, file)| listing.names.binary_search(file).is_ok()));
    let map: Map<String, Value> = pairs.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect();
    assert_eq!(
        serde_json::from_value::<colibri_store::container::json::StringMap>(Value::Object(map)).ok().as_ref(),
        Some(index)
    );
}
