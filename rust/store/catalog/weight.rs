//! Where one weight lies and how it is stored, decided from its type, its byte counts and what lies beside it.
//!
//! Refuses, by the names of file and tensor and with what was expected and found: wrong shapes and counts, scales that are
//! missing, of another type or another grid, scales beside a weight that needs none, and formats that are known and not
//! read. FP8 is what the element type and the scales beside it say; a configuration never decides.

use colibri_kernels::format::Format;

use super::Catalog;
use crate::container::format::{Counts, RANS_STAMP, Refusal, unreadable};
use crate::container::{Dtype, TensorInfo};
use crate::error::{Fault, FaultKind, StoreError, shown};
use crate::scales::ScaleType;
use crate::source::Span;

/// The suffix of the scales that belong to a quantised weight of a public container.
pub const SCALE_SUFFIX: &str = ".qs";

/// The suffix of the block scales of an FP8 weight of a checkpoint: `X.weight` has `X.weight_scale_inv`.
pub const BLOCK_SCALE_SUFFIX: &str = "_scale_inv";

/// Rows and columns that share a block scale.
const BLOCK: usize = 128;

/// The last part of a merged expert's name; its scales end in [`SCALE_SUFFIX`] alone.
pub const MERGED: &str = ".merged_weight";

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
    /// The scales of a format that has some.
    pub scales: Option<Span>,
    /// What the scales are stored as; kernels take f32.
    pub scale_type: ScaleType,
}

impl WeightLocation {
    /// Bytes of codes and scales together.
    pub fn bytes(&self) -> u64 {
        self.codes.bytes.saturating_add(self.scales.map_or(0, |span| span.bytes))
    }
}

/// Expected and found, before file and tensor are named.
type Mismatch = (FaultKind, String, String);

fn corrupt(expected: impl Into<String>, got: impl Into<String>) -> Mismatch {
    (FaultKind::Corrupt, expected.into(), got.into())
}

impl From<Refusal> for Mismatch {
    fn from(refusal: Refusal) -> Self {
        (refusal.kind, refusal.expected, refusal.got)
    }
}

/// Which matrix of a merged expert.
#[derive(Clone, Copy)]
enum Part {
    Gate,
    Up,
    Down,
}

/// The prefix of an expert and the part that a name like `P.experts.3.gate_proj.weight` means.
fn expert_part(name: &str) -> Option<(&str, Part)> {
    let parts = [(".gate_proj.weight", Part::Gate), (".up_proj.weight", Part::Up), (".down_proj.weight", Part::Down)];
    let (prefix, part) = parts.into_iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, part)))?;
    let (parent, number) = prefix.rsplit_once('.')?;
    let expert = parent.ends_with(".experts") && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    expert.then_some((prefix, part))
}

impl Catalog {
    pub(super) fn locate(&self, name: &str, shape: &[usize], group: Option<u32>) -> Result<WeightLocation, Fault> {
        let merged = match shape {
            [rows, cols] => self.merged(name, (*rows, *cols)),
            _ => None,
        };
        let (tensor, found) = match (self.get(name), merged) {
            (Some(tensor), None) => (tensor, self.in_tensor(tensor, shape, group)),
            (None, Some((merged, found))) => (merged, found),
            (Some(tensor), Some((merged, _))) => {
                let got = format!("also {}", shown(&merged.name));
                (tensor, Err(corrupt("one tensor that holds it", got)))
            }
            (None, None) => return Err(self.missing(name)),
        };
        found.map_err(|(kind, expected, got)| {
            let path = &self.file_of(tensor).path;
            let fault = Fault::tensor(kind, path, &tensor.name, &expected, &got);
            if tensor.name == name { fault } else { fault.why(format!("it holds {}", shown(name))) }
        })
    }

    /// The location of a weight that has a tensor of its own.
    fn in_tensor(&self, tensor: &TensorInfo, shape: &[usize], group: Option<u32>) -> Result<WeightLocation, Mismatch> {
        let (rows, cols) = match *shape {
            [rows, cols] => (rows, cols),
            _ => (1, shape.first().copied().unwrap_or(0)),
        };
        if rows == 0 || cols == 0 {
            return Err(corrupt("a weight of one element or more", format!("{shape:?}")));
        }
        let float = match tensor.dtype {
            Dtype::F32 => Format::F32,
            Dtype::Bf16 => Format::Bf16,
            Dtype::F16 => Format::F16,
            Dtype::U8 | Dtype::I8 if shape.len() == 2 => return self.quantised(tensor, (rows, cols), group),
            Dtype::F8E4m3 if shape.len() == 2 => return self.fp8(tensor, (rows, cols)),
            Dtype::U8 | Dtype::I8 | Dtype::F8E4m3 => {
                return Err(corrupt(format!("F32, BF16 or F16 {shape:?}"), tensor.dtype.name()));
            }
            other => {
                let expected = "F32, BF16, F16, F8_E4M3 or U8 with scales".to_owned();
                let got = format!("{}, which is not supported", other.name());
                return Err((FaultKind::Unsupported, expected, got));
            }
        };
        check_shape(tensor, shape)?;
        if let Some(stamp) = self.stamp(&tensor.name)
            && stamp != float.stamp()
        {
            return Err(corrupt(format!("{} as its type says", float.stamp()), shown(stamp)));
        }
        for suffix in [SCALE_SUFFIX, BLOCK_SCALE_SUFFIX] {
            self.no_scales(tensor, suffix)?;
        }
        let (codes, scales) = (span_of(tensor), None);
        Ok(WeightLocation { format: float, rows, cols, codes, scales, scale_type: ScaleType::F32 })
    }

    /// Scales of another kind beside a weight would mean that one of the two is not what it seems.
    fn no_scales(&self, tensor: &TensorInfo, suffix: &str) -> Result<(), Mismatch> {
        let name = format!("{}{suffix}", tensor.name);
        match self.get(&name) {
            Some(_) => Err(corrupt(format!("no {suffix} scales beside {}", tensor.dtype.name()), shown(&name))),
            None => Ok(()),
        }
    }

    /// The scales of a weight, which must be there.
    fn scales_of(&self, tensor: &TensorInfo, suffix: &str) -> Result<&TensorInfo, Mismatch> {
        let name = format!("{}{suffix}", tensor.name);
        let missing = || (FaultKind::Missing, format!("its scales in {}", shown(&name)), "no such tensor".to_owned());
        self.get(&name).ok_or_else(missing)
    }

    /// The location of a quantised matrix, from its byte counts and its stamp.
    fn quantised(
        &self,
        tensor: &TensorInfo,
        (rows, cols): (usize, usize),
        group: Option<u32>,
    ) -> Result<WeightLocation, Mismatch> {
        self.no_scales(tensor, BLOCK_SCALE_SUFFIX)?;
        let stamp = self.stamp(&tensor.name);
        let packed = self.is_packed(tensor);
        if packed && stamp.is_none() && self.get(&format!("{}{SCALE_SUFFIX}", tensor.name)).is_none() {
            return Err(unreadable(RANS_STAMP).into());
        }
        let scales = self.scales_of(tensor, SCALE_SUFFIX)?;
        let counts = Counts { rows: rows as u64, cols: cols as u64, codes: tensor.bytes, scales: scales.bytes, stamp };
        if scales.dtype != Dtype::F32 {
            return Err(match counts.e8m0_refusal() {
                Some(refusal) => refusal.into(),
                None => corrupt("scales of type F32", scales.dtype.name()),
            });
        }
        match counts.decide(group) {
            Ok(format) => Ok(WeightLocation {
                format,
                rows,
                cols,
                codes: span_of(tensor),
                scales: Some(span_of(scales)),
                scale_type: ScaleType::F32,
            }),
            // Sizes that no other format has, beside the table of that one.
            Err(refusal) if packed && stamp.is_none() && refusal.kind == FaultKind::Corrupt => {
                Err(unreadable(RANS_STAMP).into())
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The location of an FP8 matrix of a checkpoint, whose block scales lie in a tensor of their own.
    fn fp8(&self, tensor: &TensorInfo, (rows, cols): (usize, usize)) -> Result<WeightLocation, Mismatch> {
        check_shape(tensor, &[rows, cols])?;
        self.no_scales(tensor, SCALE_SUFFIX)?;
        if let Some(stamp) = self.stamp(&tensor.name)
            && stamp != Format::Fp8Block.stamp()
        {
            return Err(corrupt(format!("{} as its type says", Format::Fp8Block.stamp()), shown(stamp)));
        }
        let scales = self.scales_of(tensor, BLOCK_SCALE_SUFFIX)?;
        let grid = [rows.div_ceil(BLOCK), cols.div_ceil(BLOCK)];
        if !same_shape(scales, &grid) {
            let expected = format!("{grid:?} block scales for {rows} x {cols} in {}", shown(&scales.name));
            return Err(corrupt(expected, format!("{} {:?}", scales.dtype.name(), scales.shape)));
        }
        let Some(scale_type) = ScaleType::of(scales.dtype) else {
            let expected = format!("F32, BF16, F16 or F8_E8M0 in {}", shown(&scales.name));
            return Err((FaultKind::Unsupported, expected, scales.dtype.name().to_owned()));
        };
        let (codes, scales) = (span_of(tensor), Some(span_of(scales)));
        Ok(WeightLocation { format: Format::Fp8Block, rows, cols, codes, scales, scale_type })
    }

    /// The location of a part of a merged expert (int8 codes of gate, up and down in a row, and so their row scales), if
    /// there is such a tensor.
    fn merged(
        &self,
        name: &str,
        (rows, cols): (usize, usize),
    ) -> Option<(&TensorInfo, Result<WeightLocation, Mismatch>)> {
        let (prefix, part) = expert_part(name)?;
        let tensor = self.get(&format!("{prefix}{MERGED}"))?;
        let scales = self.get(&format!("{prefix}{SCALE_SUFFIX}"));
        Some((tensor, self.merged_part(tensor, scales, part, (rows, cols))))
    }

    fn merged_part(
        &self,
        tensor: &TensorInfo,
        scales: Option<&TensorInfo>,
        part: Part,
        (rows, cols): (usize, usize),
    ) -> Result<WeightLocation, Mismatch> {
        let Some(scales) = scales else {
            let name = tensor.name.replace(MERGED, SCALE_SUFFIX);
            let expected = format!("its scales in {}", shown(&name));
            return Err((FaultKind::Missing, expected, "no such tensor".to_owned()));
        };
        if !matches!(tensor.dtype, Dtype::I8 | Dtype::U8) {
            return Err(corrupt("I8 or U8 codes", tensor.dtype.name()));
        }
        if scales.dtype != Dtype::F32 {
            return Err(corrupt("scales of type F32", scales.dtype.name()));
        }
        if let Some(stamp) = self.stamp(&tensor.name)
            && stamp != Format::Int8Row.stamp()
        {
            return Err(corrupt(format!("{} codes", Format::Int8Row.stamp()), shown(stamp)));
        }
        // Rows of gate and up, which are the columns of down.
        let (width, hidden) = match part {
            Part::Gate | Part::Up => (rows as u64, cols as u64),
            Part::Down => (cols as u64, rows as u64),
        };
        let too_large = || corrupt("a matrix whose size fits 64 bits", format!("[{rows}, {cols}]"));
        let codes = width.checked_mul(hidden).ok_or_else(too_large)?;
        let all_codes = codes.checked_mul(3).ok_or_else(too_large)?;
        let row_scales = width.checked_mul(4).ok_or_else(too_large)?;
        let last = hidden.checked_mul(4).ok_or_else(too_large)?;
        let all_scales = row_scales.checked_mul(2).and_then(|two| two.checked_add(last)).ok_or_else(too_large)?;
        if (tensor.bytes, scales.bytes) != (all_codes, all_scales) || codes == 0 {
            let expected = format!("{all_codes} + {all_scales} bytes of three int8 matrices, one [{rows}, {cols}]");
            return Err(corrupt(expected, format!("{} + {} bytes", tensor.bytes, scales.bytes)));
        }
        let (before, scale_bytes) = match part {
            Part::Gate => (0, row_scales),
            Part::Up => (1, row_scales),
            Part::Down => (2, last),
        };
        let part_of = |whole: &TensorInfo, skip: u64, bytes: u64| Span {
            file: whole.file,
            offset: whole.offset.saturating_add(before * skip),
            bytes,
        };
        Ok(WeightLocation {
            format: Format::Int8Row,
            rows,
            cols,
            codes: part_of(tensor, codes, codes),
            scales: Some(part_of(scales, row_scales, scale_bytes)),
            scale_type: ScaleType::F32,
        })
    }

    /// Every tensor of scales whose weight is not there: a weight would be read as something else, or is lost.
    ///
    /// # Errors
    /// One error that names all of them.
    pub fn check_scales(&self) -> Result<(), StoreError> {
        let mut faults = Vec::new();
        for tensor in self.tensors() {
            let Some((suffix, weight)) = [BLOCK_SCALE_SUFFIX, SCALE_SUFFIX]
                .into_iter()
                .find_map(|suffix| Some((suffix, tensor.name.strip_suffix(suffix)?)))
            else {
                continue;
            };
            let merged = suffix == SCALE_SUFFIX && self.get(&format!("{weight}{MERGED}")).is_some();
            if self.get(weight).is_none() && !merged {
                let path = &self.file_of(tensor).path;
                let expected = format!("the weight {} that it scales", shown(weight));
                let fault = Fault::tensor(FaultKind::Missing, path, &tensor.name, &expected, "no such tensor");
                faults.push(fault.fix("fetch the missing shards: weights and their scales may lie in different ones"));
            }
        }
        StoreError::from_faults(self.directory(), faults)
    }
}

fn span_of(tensor: &TensorInfo) -> Span {
    Span { file: tensor.file, offset: tensor.offset, bytes: tensor.bytes }
}

fn same_shape(tensor: &TensorInfo, shape: &[usize]) -> bool {
    tensor.shape.len() == shape.len()
        && tensor.shape.iter().zip(shape).all(|(found, wanted)| usize::try_from(*found) == Ok(*wanted))
}

fn check_shape(tensor: &TensorInfo, shape: &[usize]) -> Result<(), Mismatch> {
    if same_shape(tensor, shape) {
        return Ok(());
    }
    Err(corrupt(format!("shape {shape:?}"), format!("{} {:?}", tensor.dtype.name(), tensor.shape)))
}
