//! What becomes of an unfinished conversion that cannot go on.
//!
//! A build folder with finished shards may be the only place where the weights of source files that are gone are left: a
//! conversion may remove its source as it goes. Must hold: no advice to remove such a folder is given without saying so,
//! and no run begins anew over it.

use std::path::Path;

use colibri_store::container::listing;
use colibri_store::durable::{BuildDirectory, finished_files};
use colibri_store::error::{Fault, FaultKind, StoreError, grouped};

use super::journal::{BUILD_NAMES, Journal};
use crate::error::EngineError;

/// Where a conversion lies and what it is made from.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The folder of the checkpoint.
    pub source: &'a Path,
    /// The build folder.
    pub folder: &'a Path,
}

impl Place<'_> {
    /// What can be done instead of going on, as the end of a sentence: to begin anew, unless that loses weights.
    pub(super) fn otherwise(&self) -> String {
        let folder = self.folder.display();
        let begin = format!(", or remove {folder} to begin anew");
        // What came from elsewhere, a few files at a time, can come again.
        let fetched = self.source.starts_with(self.folder);
        if fetched || finished_files(self.folder, BUILD_NAMES).is_empty() {
            return begin;
        }
        let files = Journal::recorded_files(self.folder)
            .or_else(|| listing::list_planned(self.source).ok().map(|listing| listing.names));
        let Some(files) = files else {
            return format!("; keep {folder}: it may hold the only copy of its weights");
        };
        let gone = gone(self.source, &files);
        if gone.is_empty() { begin } else { self.only_copy(gone.len(), files.len()) }
    }

    fn only_copy(&self, gone: usize, count: usize) -> String {
        format!(
            "; keep {folder}: {gone} of {count} weight files are not in {source}, and it may hold the only copy of their \
             weights",
            folder = self.folder.display(),
            source = self.source.display()
        )
    }
}

/// The weight files of these names that are not in the folder `source`.
fn gone(source: &Path, files: &[String]) -> Vec<String> {
    files.iter().filter(|file| !source.join(file).exists()).cloned().collect()
}

/// Refuses to begin over finished shards of which no journal tells, when the weight files they were made from are not
/// all there: they cannot be made again.
pub(super) fn refuse_loss(source: &Path, building: &BuildDirectory, files: &[String]) -> Result<(), EngineError> {
    let (finished, gone) = (building.finished(), gone(source, files));
    if finished.is_empty() || gone.is_empty() {
        return Ok(());
    }
    let place = Place { source, folder: building.path() };
    let what = format!(
        "{} holds {} finished shards and no journal of how they were made",
        building.path().display(),
        grouped(finished.len() as u64)
    );
    let fault = Fault::file(FaultKind::Missing, building.path(), what)
        .why(format!("{} of {} weight files are not in {}", gone.len(), files.len(), source.display()))
        .fix(format!("put the weight files back to convert them again{}", place.only_copy(gone.len(), files.len())));
    Err(StoreError::fault(building.path(), fault).into())
}
