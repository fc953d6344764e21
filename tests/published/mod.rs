//! Writes a container in the layout of the published ones, from one that holds the same tensors.
//!
//! In such a file all F32 tensors come first and then all others, both sorted by name: the codes of an expert are
//! adjacent, in the order down, gate, up, and its scales lie elsewhere. There is no manifest, no stamp and no padding, so
//! that everything begins wherever the header's length puts it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use colibri::store::{Catalog, Dtype, TensorInfo};
use serde_json::{Value, json};

/// What may differ between published containers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bytes by which the data begins off a multiple of 8; scales cannot be used in place unless it is a multiple of 4.
    pub(crate) shift: usize,
    /// The scales lie in a file of their own.
    pub(crate) scales_apart: bool,
}

/// Writes the tensors of the container `from` into the existing folder `to`, with everything that travels along.
pub(crate) fn publish(from: &Path, to: &Path, layout: Layout) {
    let catalog = Catalog::open(from).unwrap();
    let (scales, others): (Vec<_>, Vec<_>) = catalog.tensors().partition(|tensor| tensor.name.ends_with(".qs"));
    if layout.scales_apart {
        write_file(&catalog, others, &to.join("out-00000.safetensors"), layout);
        write_file(&catalog, scales, &to.join("out-00001.safetensors"), layout);
    } else {
        write_file(&catalog, catalog.tensors().collect(), &to.join("out-00000.safetensors"), layout);
    }
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        if name.to_str().unwrap().ends_with("config.json") {
            fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
    }
}

fn write_file(catalog: &Catalog, mut tensors: Vec<&TensorInfo>, path: &Path, layout: Layout) {
    tensors.sort_by_key(|tensor| (tensor.dtype != Dtype::F32, tensor.name.clone()));
    let mut header = BTreeMap::new();
    let mut data = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.resize(start + usize::try_from(tensor.bytes).unwrap(), 0);
        let file = File::open(&catalog.files()[tensor.file.0 as usize].path).unwrap();
        file.read_exact_at(&mut data[start..], tensor.offset).unwrap();
        let entry = json!({
            "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [start, data.len()],
        });
        header.insert(tensor.name.clone(), entry);
    }
    let mut header: Vec<u8> = json!(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8) + layout.shift, b' ');
    assert!(serde_json::from_slice::<Value>(&header).is_ok());
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.write_all(&data).unwrap();
}
