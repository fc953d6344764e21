//! A container made of choices: most are sound, so that an input reaches beyond the first check.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use colibri_store::Dtype;
use colibri_store::catalog::{MERGED, STAMP_KEY};
use colibri_store::container::format::{GROUPS, RANS_KEY, RANS_STAMP};
use colibri_store::container::listing::INDEX_NAME;
use colibri_store::container::manifest::MANIFEST_NAME;
use serde_json::{Map, Value, json};

use super::super::input::Input;

const EXPERT: &str = "model.layers.0.mlp.experts.0";
/// Names of weights.
const NAMES: [&str; 8] = [
    "model.layers.0.mlp.experts.0.gate_proj.weight",
    "model.layers.0.mlp.experts.0.up_proj.weight",
    "model.layers.0.mlp.experts.0.down_proj.weight",
    "model.layers.0.mlp.experts.1.gate_proj.weight",
    "model.embed_tokens.weight",
    "lm_head.weight",
    "__pad__.x.weight",
    "\u{1b}[2J\u{202e}.weight",
];
/// Rows and columns: around the widths of blocks, groups and bytes, none, and far too many.
const EXTENTS: [usize; 24] = [
    4,
    8,
    16,
    24,
    32,
    48,
    64,
    96,
    100,
    127,
    128,
    129,
    144,
    192,
    200,
    256,
    300,
    512,
    1536,
    1,
    0,
    1 << 20,
    1 << 33,
    usize::MAX / 2,
];
/// Element types of scales, sound and not.
const SCALES: [&str; 5] = ["F32", "BF16", "F16", "F8_E8M0", "U8"];
/// Stamps, sound and not.
const STAMPS: [&str; 10] =
    ["int8-row", "int4-row", "int4-grouped", "int2-row", "int3-g64", "fp8-e4m3-b128", "bf16", "f32", RANS_STAMP, "zip"];
const SHARDS: [&str; 4] = [
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
    "out-mtp-00000.safetensors",
];
const MATRICES: usize = 8;
/// No file is longer; it is a hole and takes no room.
const LONGEST: u64 = 1 << 40;

/// A matrix that is asked for.
pub(super) struct Matrix {
    /// Its name.
    pub(super) name: String,
    /// Rows.
    pub(super) rows: usize,
    /// Columns.
    pub(super) cols: usize,
}

#[derive(Default)]
struct Shard {
    /// Name, type, shape, bytes.
    tensors: Vec<(String, String, Vec<u64>, u64)>,
    stamps: Map<String, Value>,
    packed: bool,
    /// Bytes that the file has too many or, if negative, too few.
    off: i64,
}

/// A folder with up to four shards and what lists them.
#[derive(Default)]
pub(super) struct Model {
    /// The matrices that are asked for, stored or not.
    pub(super) matrices: Vec<Matrix>,
    shards: Vec<Shard>,
    index: bool,
    /// Formats that the manifest names, if there is one.
    manifest: Option<Vec<String>>,
    /// What is written over the last byte of index or manifest.
    damage: Option<u8>,
}

impl Model {
    /// Chooses a model.
    pub(super) fn choose(input: &mut Input<'_>) -> Self {
        let count = 1 + input.below(SHARDS.len());
        let mut model = Self { shards: (0..count).map(|_| Shard::default()).collect(), ..Self::default() };
        match input.below(4) {
            1 => model.index = true,
            2 => {
                let list = [format!("q4g{}", input.pick(&GROUPS)), "q8".to_owned(), "q4row".to_owned()];
                model.manifest = Some(list.into_iter().take(input.below(4)).collect());
            }
            _ => {}
        }
        for _ in 0..=input.below(MATRICES) {
            model.matrix(input);
        }
        for shard in &mut model.shards {
            shard.packed = input.seldom(16);
            shard.off = if input.seldom(32) { i64::from(input.byte().cast_signed()) } else { 0 };
        }
        model.damage = input.seldom(32).then(|| input.byte());
        model
    }

    /// Number of tensors in all shards.
    pub(super) fn tensors(&self) -> usize {
        self.shards.iter().map(|shard| shard.tensors.len()).sum()
    }

    /// Number of shards that are written.
    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    fn matrix(&mut self, input: &mut Input<'_>) {
        let name = input.pick(&NAMES).to_owned();
        let (rows, cols) = (input.pick(&EXTENTS), input.pick(&EXTENTS));
        let (codes_in, scales_in) = (input.below(self.shards.len()), input.below(self.shards.len()));
        let (r, c) = (rows as u64, cols as u64);
        let blocks = [r.div_ceil(128), c.div_ceil(128)];
        let per_row = |count: u64| r.checked_mul(count);
        let (dtype, codes, scale_suffix, scales): (&str, Vec<u64>, &str, Option<Vec<u64>>) = match input.below(14) {
            0 => ("F32", vec![r, c], "", None),
            1 => ("BF16", vec![r, c], "", None),
            2 => ("F16", vec![r, c], "", None),
            3 => ("U8", flat(per_row(c)), ".qs", Some(vec![r])),
            4 => ("U8", flat(per_row(c.div_ceil(2))), ".qs", Some(vec![r])),
            5 => {
                let groups = c.div_ceil(u64::from(input.pick(&GROUPS)));
                ("U8", flat(per_row(c.div_ceil(2))), ".qs", Some(flat(per_row(groups))))
            }
            6 => ("I8", flat(per_row(c.div_ceil(4))), ".qs", Some(vec![r])),
            7 => {
                let groups = per_row(c.div_ceil(64));
                ("U8", flat(groups.and_then(|groups| groups.checked_mul(24))), ".qs", Some(flat(groups)))
            }
            8 => ("U8", flat(per_row(c)), ".qs", Some(flat(blocks[0].checked_mul(blocks[1])))),
            9 => ("F8_E4M3", vec![r, c], "_scale_inv", Some(blocks.to_vec())),
            10 => ("U8", flat(per_row(98 * c.div_ceil(256))), ".qs", Some(vec![1])),
            11 => return self.merged(input, name, (rows, cols), (codes_in, scales_in)),
            12 => (input.pick(Dtype::ALL).name(), vec![c], "", None),
            _ => ("BF16", vec![c], "", None),
        };
        let scale_type = if scale_suffix == "_scale_inv" || input.seldom(16) { input.pick(&SCALES) } else { SCALES[0] };
        let stored = self.tensor(input, codes_in, &name, dtype, codes);
        if let Some(scales) = scales.filter(|_| !input.seldom(32)) {
            self.tensor(input, scales_in, &format!("{name}{scale_suffix}"), scale_type, scales);
        }
        if stored && input.seldom(4) {
            let stamp = input.pick(&STAMPS);
            self.shards[codes_in].stamps.insert(name.clone(), Value::from(stamp));
        }
        self.matrices.push(Matrix { name, rows, cols });
    }

    /// A merged expert of this width and hidden size, all of whose matrices are asked for.
    fn merged(&mut self, input: &mut Input<'_>, name: String, size: (usize, usize), place: (usize, usize)) {
        let (width, hidden) = (size.0 as u64, size.1 as u64);
        let codes = width.checked_mul(hidden).and_then(|codes| codes.checked_mul(3));
        let scales = width.checked_mul(2).and_then(|scales| scales.checked_add(hidden));
        self.tensor(input, place.0, &format!("{EXPERT}{MERGED}"), "I8", flat(codes));
        self.tensor(input, place.1, &format!("{EXPERT}.qs"), "F32", flat(scales));
        let parts = [(NAMES[0].to_owned(), size), (NAMES[2].to_owned(), (size.1, size.0)), (name, size)];
        self.matrices.extend(parts.into_iter().map(|(name, (rows, cols))| Matrix { name, rows, cols }));
    }

    /// Adds a tensor, now and then with another extent; says whether it was: one beyond every file is left out.
    fn tensor(&mut self, input: &mut Input<'_>, shard: usize, name: &str, dtype: &str, mut shape: Vec<u64>) -> bool {
        if input.seldom(32)
            && let Some(last) = shape.last_mut()
        {
            *last = last.wrapping_add_signed(i64::from(input.byte().cast_signed()));
        }
        let tensors = &mut self.shards[shard].tensors;
        let room = LONGEST - tensors.iter().map(|(_, _, _, bytes)| bytes).sum::<u64>();
        let bytes = Dtype::parse(dtype).and_then(|dtype| dtype.bytes(&shape)).filter(|bytes| *bytes <= room);
        if let Some(bytes) = bytes {
            tensors.push((name.to_owned(), dtype.to_owned(), shape, bytes));
        }
        bytes.is_some()
    }

    /// Writes the folder.
    pub(super) fn write(&self, folder: &Path) {
        let mut listed = Vec::new();
        let mut places = Map::new();
        for (shard, name) in self.shards.iter().zip(SHARDS) {
            let bytes = shard.write(&folder.join(name));
            listed.push(json!({"file": name, "bytes": bytes, "sha256": ""}));
            places.extend(shard.tensors.iter().map(|(tensor, ..)| (tensor.clone(), Value::from(name))));
        }
        let (name, value) = match &self.manifest {
            Some(formats) => {
                let class = |format: &String| json!({"class": "experts", "format": format});
                let formats: Vec<Value> = formats.iter().map(class).collect();
                let source = json!({"name": "m", "model_type": "t", "bytes": 1});
                let manifest = json!({
                    "format": "colibri", "format_version": 1, "writer": "colibri", "source": source,
                    "quantisation": formats, "scale_rule": "search", "multi_token_prediction": false,
                    "shards": listed, "files": [],
                });
                (MANIFEST_NAME, manifest)
            }
            None if self.index => (INDEX_NAME, json!({"metadata": {}, "weight_map": places})),
            None => return,
        };
        let mut text = value.to_string().into_bytes();
        if let (Some(byte), Some(last)) = (self.damage, text.iter_mut().nth_back(3)) {
            *last = byte;
        }
        std::fs::write(folder.join(name), text).expect("what lists the shards");
    }
}

impl Shard {
    /// Writes the shard, its data as a hole; returns its length.
    fn write(&self, path: &Path) -> u64 {
        let mut header = String::from("{");
        let mut metadata = Map::new();
        if !self.stamps.is_empty() {
            metadata.insert(STAMP_KEY.to_owned(), Value::from(Value::Object(self.stamps.clone()).to_string()));
        }
        if self.packed {
            metadata.insert(RANS_KEY.to_owned(), Value::from("0,1,2"));
        }
        let _ = write!(header, r#""__metadata__":{}"#, Value::Object(metadata));
        let mut end = 0u64;
        for (name, dtype, shape, bytes) in &self.tensors {
            let offsets = [end, end + bytes];
            end += bytes;
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
            // Not a map: a name may come twice.
            let _ = write!(header, ",{}:{entry}", Value::from(name.as_str()));
        }
        header.push('}');
        let mut file = File::create(path).expect("a shard");
        let start = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        file.write_all(&start).expect("the header of a shard");
        let length = (start.len() as u64 + end).saturating_add_signed(self.off);
        file.set_len(length).expect("a hole of the length of its data");
        length
    }
}

/// A flat shape; one beyond 64 bits is one that no file holds.
fn flat(count: Option<u64>) -> Vec<u64> {
    vec![count.unwrap_or(u64::MAX)]
}
