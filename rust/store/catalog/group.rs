//! The group size of a container's int4 matrices: one for all, found from all of them together.
//!
//! A single matrix may fit several sizes: 96 columns in two groups are groups of 48 or of 64. The sizes that fit a matrix
//! are an interval of those that occur, so where no size fits all matrices, two of them disagree, and they are named. Where
//! several fit, there is no rule to prefer one: the container is refused.

use super::Catalog;
use super::weight::SCALE_SUFFIX;
use crate::container::format::{Counts, GROUPS};
use crate::container::{Dtype, TensorInfo};
use crate::error::{Fault, FaultKind, StoreError, shown};
use colibri_kernels::format::Format;

/// The one group size of a container's int4 matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSize(Option<u32>);

impl GroupSize {
    /// No matrix is in several groups.
    pub const NONE: GroupSize = GroupSize(None);

    /// The size that an earlier look at the whole container found.
    #[must_use]
    pub const fn known(columns: Option<u32>) -> Self {
        Self(columns)
    }

    /// Columns that share a scale, if a matrix of the container is in groups.
    #[must_use]
    pub fn columns(self) -> Option<u32> {
        self.0
    }
}

/// A matrix in groups and the sizes that fit it.
#[derive(Clone)]
struct Fit<'a> {
    tensor: &'a TensorInfo,
    rows: usize,
    cols: usize,
    scales: u64,
    least: u32,
    most: u32,
}

impl Fit<'_> {
    /// For a message: what lies there and what would fit.
    fn text(&self) -> String {
        let Fit { rows, cols, scales, least, most, .. } = self;
        let sizes = if least == most { least.to_string() } else { format!("{least} to {most}") };
        format!("{} [{rows}, {cols}] has {scales} scales: groups of {sizes}", shown(&self.tensor.name))
    }
}

impl Catalog {
    /// The group size that fits every int4 matrix in groups among `matrices` (name, rows, columns); names that are not in
    /// the catalog are passed over, and so are counts that fit no size at all, because [`Catalog::weight`] names those.
    /// A manifest that gives one size decides.
    ///
    /// # Errors
    /// A corrupt container when no size fits all, with the two matrices that disagree; an unsupported one when several do.
    pub fn group_size<'a>(
        &self,
        matrices: impl Iterator<Item = (&'a str, usize, usize)>,
    ) -> Result<GroupSize, StoreError> {
        let listed = self.listed_groups();
        if let [only] = listed[..] {
            return Ok(GroupSize(Some(only)));
        }
        let sizes: &[u32] = if listed.is_empty() { &GROUPS } else { &listed };
        // The matrix with the smallest largest size, and the one with the largest smallest size, of several groups or one.
        let (mut finest, mut coarsest): (Option<Fit<'_>>, Option<Fit<'_>>) = (None, None);
        let mut several = false;
        for (name, rows, cols) in matrices {
            let Some((fit, in_groups)) = self.fit(name, rows, cols, sizes) else { continue };
            several |= in_groups;
            if finest.as_ref().is_none_or(|finest| fit.most < finest.most) {
                finest = Some(fit.clone());
            }
            if coarsest.as_ref().is_none_or(|coarsest| fit.least > coarsest.least) {
                coarsest = Some(fit);
            }
        }
        let (Some(finest), Some(coarsest), true) = (finest, coarsest, several) else { return Ok(GroupSize::NONE) };
        let fitting: Vec<u32> =
            sizes.iter().copied().filter(|size| (coarsest.least..=finest.most).contains(size)).collect();
        match fitting[..] {
            [only] => Ok(GroupSize(Some(only))),
            [] => Err(self.group_fault(FaultKind::Corrupt, &coarsest, &finest.text())),
            _ => {
                let list = fitting.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                Err(self.group_fault(FaultKind::Unsupported, &finest, &list))
            }
        }
    }

    /// The int4 group sizes that the manifest gives, each once, in rising order.
    fn listed_groups(&self) -> Vec<u32> {
        let classes = self.manifest().map(|manifest| manifest.quantisation.as_slice()).unwrap_or_default();
        let mut sizes: Vec<u32> = classes
            .iter()
            .filter_map(|class| match Format::parse(&class.format) {
                Some(Format::Int4Grouped { group }) => Some(group),
                _ => None,
            })
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The sizes that fit a matrix of int4 groups, and whether its rows have several.
    fn fit(&self, name: &str, rows: usize, cols: usize, sizes: &[u32]) -> Option<(Fit<'_>, bool)> {
        let tensor = self.get(name).filter(|tensor| matches!(tensor.dtype, Dtype::U8 | Dtype::I8))?;
        let scales = self.get(&format!("{name}{SCALE_SUFFIX}")).filter(|scales| scales.dtype == Dtype::F32)?;
        let stamp = self.stamp(name);
        let counts = Counts { rows: rows as u64, cols: cols as u64, codes: tensor.bytes, scales: scales.bytes, stamp };
        if !counts.is_int4_grouped() {
            return None;
        }
        let mut fitting = sizes.iter().copied().filter(|size| counts.fits_group(*size));
        let least = fitting.next()?;
        let most = fitting.next_back().unwrap_or(least);
        let scales = scales.bytes / 4;
        Some((Fit { tensor, rows, cols, scales, least, most }, scales > rows as u64))
    }

    fn group_fault(&self, kind: FaultKind, fit: &Fit<'_>, other: &str) -> StoreError {
        let path = &self.file_of(fit.tensor).path;
        let name = &fit.tensor.name;
        let fault = if kind == FaultKind::Corrupt {
            Fault::tensor(kind, path, name, "one group size for all int4 matrices", "one that fits no other matrix")
                .why(format!("{}; {other}", fit.text()))
                .fix("fetch the weight files again: they are of different conversions, or damaged")
        } else {
            let got = format!("several that fit every int4 matrix: {other}");
            Fault::tensor(kind, path, name, "one group size", &got)
                .why(format!(
                    "{}; nothing in this container says which is meant, and a guess could be wrong",
                    fit.text()
                ))
                .fix("convert the checkpoint with colibri, whose containers say their group size")
        };
        StoreError::fault(self.directory(), fault)
    }
}
