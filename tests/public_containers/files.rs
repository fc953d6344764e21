//! Checkpoints read to f32 values, and containers written in the layout of the public ones.

use std::fs;
use std::path::Path;

use colibri::kernels::format::{ScaleRule, decode_row, encode};
use colibri::kernels::{Format, MatrixView};
use colibri::store::catalog::{BLOCK_SCALE_SUFFIX, Catalog, SCALE_SUFFIX, ScaleType};
use colibri::store::{GroupSize, Span};
use serde_json::{Map, Value, json};

/// A tensor of a checkpoint in f32.
pub(crate) struct Values {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

impl Values {
    /// Layer and expert numbers stand where the names have them.
    pub(crate) fn layer(&self) -> Option<usize> {
        self.name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
    }

    /// Whether public containers quantise it: a matrix that is not the router.
    pub(crate) fn is_quantised(&self) -> bool {
        self.shape.len() == 2 && !self.name.ends_with(".mlp.gate.weight")
    }

    /// The tensor unquantised.
    pub(crate) fn float(&self) -> Tensor {
        let bytes = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { name: self.name.clone(), dtype: "F32", shape: self.shape.clone(), bytes }
    }

    /// Codes and scales with scales of the largest magnitude, as two flat tensors.
    pub(crate) fn encoded(&self, format: Format) -> [Tensor; 2] {
        let (rows, cols) = (self.shape[0], self.shape[1]);
        let mut codes = vec![0; format.code_bytes(rows, cols).unwrap()];
        let mut scales = vec![0f32; format.scale_count(rows, cols).unwrap()];
        encode(format, ScaleRule::AbsMax, rows, cols, &self.values, &mut codes, &mut scales).unwrap();
        pair(&self.name, codes, &scales)
    }
}

/// Flat codes and their scales.
pub(crate) fn pair(name: &str, codes: Vec<u8>, scales: &[f32]) -> [Tensor; 2] {
    let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    [
        Tensor { name: name.to_owned(), dtype: "U8", shape: vec![codes.len()], bytes: codes },
        Tensor { name: format!("{name}{SCALE_SUFFIX}"), dtype: "F32", shape: vec![scales.len()], bytes },
    ]
}

/// All tensors of the checkpoint in `folder`, by name.
pub(crate) fn read(folder: &Path) -> Vec<Values> {
    let catalog = Catalog::open(folder).unwrap();
    let files: Vec<Vec<u8>> = catalog.files().iter().map(|file| fs::read(&file.path).unwrap()).collect();
    let names = catalog.tensors().filter(|tensor| !tensor.name.ends_with(BLOCK_SCALE_SUFFIX));
    let mut all = Vec::new();
    for tensor in names {
        let shape: Vec<usize> = tensor.shape.iter().map(|extent| usize::try_from(*extent).unwrap()).collect();
        let location = match shape[..] {
            [rows, cols] => catalog.weight(&tensor.name, rows, cols, GroupSize::NONE).unwrap(),
            _ => catalog.vector(&tensor.name, shape[0]).unwrap(),
        };
        assert_eq!(location.scale_type, ScaleType::F32);
        let codes = bytes_of(&files, location.codes);
        let scales: Vec<f32> = location.scales.map_or_else(Vec::new, |span| {
            let bytes = bytes_of(&files, span);
            bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        });
        let view = MatrixView::new(location.format, location.rows, location.cols, codes, &scales).unwrap();
        all.push(Values { name: tensor.name.clone(), shape, values: decoded(&view) });
    }
    all
}

/// The values of a matrix, row after row.
pub(crate) fn decoded(view: &MatrixView<'_>) -> Vec<f32> {
    let mut values = vec![0.0; view.rows() * view.cols()];
    for (row, out) in values.chunks_exact_mut(view.cols()).enumerate() {
        decode_row(view, row, out);
    }
    values
}

fn bytes_of(files: &[Vec<u8>], span: Span) -> &[u8] {
    &files[span.file.0 as usize][span.offset as usize..(span.offset + span.bytes) as usize]
}

/// A tensor as it is written.
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// A file as the safetensors library writes it: wide types first, then by name; a header without spaces, filled up to a
/// multiple of eight.
pub(crate) fn file_of(mut tensors: Vec<Tensor>, metadata: Option<Value>) -> Vec<u8> {
    let width = |tensor: &Tensor| match tensor.dtype {
        "F32" => 4,
        "BF16" => 2,
        _ => 1,
    };
    tensors.sort_by(|a, b| (width(b), &a.name).cmp(&(width(a), &b.name)));
    let mut header = Map::new();
    if let Some(metadata) = metadata {
        header.insert("__metadata__".to_owned(), metadata);
    }
    let mut end = 0;
    for tensor in &tensors {
        let start = end;
        end += tensor.bytes.len();
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.clone(), entry);
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&text);
    tensors.iter().for_each(|tensor| file.extend_from_slice(&tensor.bytes));
    file
}

/// What the passes of the public converter store matrices as.
#[derive(Clone, Copy)]
pub(crate) struct PassFormats {
    /// Decoder layers; the prediction layer comes after them.
    pub(crate) layers: usize,
    /// Of the decoder layers; embedding, head and indexers are int8.
    pub(crate) main: Format,
    /// Of the prediction layer.
    pub(crate) prediction: Format,
}

/// The file that a tensor goes to and its format there, `None` for f32: main layers, prediction layer and indexers have
/// passes of their own, and the indexer of the prediction layer is in none of them.
fn place(tensor: &Values, formats: PassFormats) -> Option<(&'static str, Option<Format>)> {
    let global = matches!(tensor.name.as_str(), "model.embed_tokens.weight" | "lm_head.weight");
    let prediction = tensor.layer().is_some_and(|layer| layer >= formats.layers);
    let (file, format) = match (tensor.name.contains(".indexer."), prediction) {
        (true, true) => return None,
        (true, false) => ("out-idx-00000.safetensors", Format::Int8Row),
        (false, true) => ("out-mtp-00000.safetensors", formats.prediction),
        (false, false) => ("out-00000.safetensors", if global { Format::Int8Row } else { formats.main }),
    };
    Some((file, tensor.is_quantised().then_some(format)))
}

/// The tensors of a public container of a checkpoint, each with the file it goes to.
pub(crate) fn public_tensors(checkpoint: &[Values], formats: PassFormats) -> Vec<(&'static str, Tensor)> {
    let mut all = Vec::new();
    for tensor in checkpoint {
        match place(tensor, formats) {
            None => {}
            Some((file, None)) => all.push((file, tensor.float())),
            Some((file, Some(format))) => all.extend(tensor.encoded(format).map(|tensor| (file, tensor))),
        }
    }
    all
}

/// Writes files of tensors into a folder.
pub(crate) fn write_files(folder: &Path, tensors: Vec<(String, Tensor)>) {
    let mut files: std::collections::BTreeMap<String, Vec<Tensor>> = std::collections::BTreeMap::new();
    for (file, tensor) in tensors {
        files.entry(file).or_default().push(tensor);
    }
    for (file, tensors) in files {
        fs::write(folder.join(file), file_of(tensors, None)).unwrap();
    }
}

/// Takes the configuration of a checkpoint along, unchanged.
pub(crate) fn copy_configuration(from: &Path, to: &Path) {
    for name in ["config.json", "generation_config.json"] {
        if from.join(name).exists() {
            fs::copy(from.join(name), to.join(name)).unwrap();
        }
    }
}
