//! A conversion from its beginning, or from where it stopped, to the container under its name.
//!
//! The build folder `DST.partial` holds the journal, the finished shards, what travels along, and, where the source comes
//! piece by piece, a folder `source` of its weight files. It stays when a run stops after a shard was finished, and goes
//! otherwise. The last acts are the manifest, the name, and the removal of the journal, in this order: a run that is
//! stopped between them is finished by the next.

use std::path::{Path, PathBuf};
use std::time::Instant;

use colibri_kernels::pool::WorkerPool;
use colibri_store::container::listing::stub_of;
use colibri_store::container::manifest::{
    AS_SOURCE, ClassFormat, FORMAT, FORMAT_VERSION, FileDigest, MANIFEST_NAME, Manifest, SourceModel,
};
use colibri_store::container::resolve;
use colibri_store::durable::{BuildDirectory, fault, remove_error, require_removable, require_space, write_file};
use colibri_store::error::StoreError;
use colibri_store::memory;

use super::journal::{BUILD_NAMES, Journal};
use super::layout::{Layout, PlannedShard, PlannedStep};
use super::pipeline::{self, Work};
use super::remains::{Place, refuse_loss};
use super::report::{ConvertReport, HeldFiles, REPORT_VERSION, Stages, StepInfo};
use super::source::{Checkpoint, missing_files};
use super::{ConvertOptions, check_options, companions, verify, workers, write};
use crate::config::{Phase, Watch};
use crate::error::EngineError;

/// A conversion in progress: planned, with its build folder open and locked.
pub struct Conversion {
    checkpoint: Checkpoint,
    layout: Layout,
    options: ConvertOptions,
    building: BuildDirectory,
    journal: Journal,
    steps: Vec<StepInfo>,
    pool: WorkerPool,
    notes: Vec<String>,
    resumed_shards: u64,
    stages: Stages,
    started: Instant,
}

impl Conversion {
    /// Plans the conversion of the checkpoint in the folder `source` from its configuration and index, or from the headers
    /// of its weight files, and opens or takes up the build folder. The weight files themselves may come later, if there is
    /// an index or their headers are there (`NAME.safetensors.header`, the first bytes of the file); what is there is
    /// checked now.
    ///
    /// # Errors
    /// A checkpoint that is missing, damaged or of unknown tensors; a destination that cannot be written or another run is
    /// writing; an unfinished conversion with other parameters or from another source.
    pub fn open(source: &Path, destination: &Path, options: &ConvertOptions) -> Result<Self, EngineError> {
        let started = Instant::now();
        check_options(options)?;
        memory::trial(0)?;
        let building = BuildDirectory::open(destination, BUILD_NAMES)?;
        let folder = building.path().to_path_buf();
        let place = Place { source, folder: &folder };
        match Journal::load(place)? {
            None => Self::begin(source, building, options, started),
            Some((mut journal, record)) => {
                journal.check_parameters(options, place)?;
                // A manifest is written when all else is done: what is left needs no source.
                let finished = building.path().join(MANIFEST_NAME).is_file();
                let checkpoint = if finished {
                    Checkpoint::of_container(building.path())?
                } else {
                    journal.check_source(place)?;
                    let files = record.as_ref().map(|record| record.files.clone()).unwrap_or_default();
                    observe(&mut journal, place, &files)?;
                    Checkpoint::open(source, options, record)?
                };
                let taken_over = ConvertOptions { repack: finished || options.repack, ..options.clone() };
                let mut layout = Layout::new(&checkpoint, &taken_over)?;
                if finished {
                    layout.steps.clear();
                }
                Self::assemble(options, checkpoint, layout, building, journal, started).take_up(finished)
            }
        }
    }

    /// A conversion with its parts; nothing is done yet.
    fn assemble(
        options: &ConvertOptions,
        checkpoint: Checkpoint,
        layout: Layout,
        building: BuildDirectory,
        journal: Journal,
        started: Instant,
    ) -> Self {
        Self {
            steps: Vec::new(),
            pool: pool(options),
            notes: Vec::new(),
            resumed_shards: 0,
            stages: Stages::default(),
            options: options.clone(),
            checkpoint,
            layout,
            building,
            journal,
            started,
        }
    }

    /// A conversion that begins: everything small is written at once, because the source may not stay.
    fn begin(
        source: &Path,
        building: BuildDirectory,
        options: &ConvertOptions,
        started: Instant,
    ) -> Result<Self, EngineError> {
        let checkpoint = Checkpoint::open(source, options, None)?;
        let layout = Layout::new(&checkpoint, options)?;
        if options.delete_source {
            require_removable(source)?;
        }
        refuse_loss(source, &building, &checkpoint.record.files)?;
        let mut journal = Journal::begin(source, options, layout.digest()?)?;
        let removed = building.clear(&|_| false)?;
        observe(&mut journal, Place { source, folder: building.path() }, &checkpoint.record.files)?;
        let mut conversion = Self::assemble(options, checkpoint, layout, building, journal, started);
        if !removed.is_empty() {
            let name = conversion.building.shown();
            conversion.notes.push(format!("{name} held the remains of a run without its journal; they were removed"));
        }
        conversion.require_room()?;
        let folder = conversion.building.path();
        conversion.journal.companions = companions::copy(source, folder)?;
        Journal::save_record(folder, &conversion.checkpoint.record)?;
        conversion.journal.save(folder)?;
        conversion.describe_steps()?;
        Ok(conversion)
    }

    /// A conversion that was begun by another run.
    fn take_up(mut self, finished: bool) -> Result<Self, EngineError> {
        let folder = self.building.path().to_path_buf();
        if finished {
            self.resumed_shards = self.journal.shards.len() as u64;
            return Ok(self);
        }
        let place = Place { source: self.checkpoint.directory(), folder: &folder };
        if self.options.delete_source {
            require_removable(place.source)?;
        }
        self.journal.check_layout(&self.layout.digest()?, place)?;
        let lost = self.journal.forget_lost(&folder, &self.layout.shards);
        self.resumed_shards = self.journal.shards.len() as u64;
        self.building.keep(self.resumed_shards > 0);
        let (journal, building) = (&self.journal, &self.building);
        let shards: Vec<String> = self.layout.shards.iter().map(PlannedShard::file).collect();
        let stuck = shards.iter().any(|name| !journal.finished(name) && self.lacks_source(name));
        building.clear(&|name| {
            let name = name.to_string_lossy();
            let listed = journal.finished(&name) || journal.companions.iter().any(|file| file.file == *name);
            // Shards that are not listed are written over when their source is there; until then one may be the only copy.
            listed || (stuck && shards.iter().any(|shard| *shard == *name))
        })?;
        self.require_room()?;
        // A shard that is away and cannot be made again may come back.
        if !lost.iter().any(|name| self.lacks_source(name)) {
            self.journal.save(&folder)?;
        }
        self.describe_steps()?;
        self.release()?;
        Ok(self)
    }

    /// Whether `file` is a shard of this container that cannot be made now, since weight files are not there.
    fn lacks_source(&self, file: &str) -> bool {
        let Some(shard) = self.layout.shards.iter().position(|shard| shard.file() == file) else { return false };
        let there = |name: &String| self.checkpoint.directory().join(name).exists();
        let files = |step: &PlannedStep| names(&self.checkpoint.record.files, &step.files);
        let mut steps = self.layout.steps.iter().filter(|step| step.shards.contains(&shard));
        steps.any(|step| !files(step).iter().all(there))
    }

    /// What a conversion would write, how much room that takes and how long; writes nothing.
    ///
    /// # Errors
    /// As [`Conversion::open`].
    pub fn dry_run(source: &Path, destination: &Path, options: &ConvertOptions) -> Result<ConvertReport, EngineError> {
        super::estimate::dry_run(source, destination, options)
    }

    /// The steps, in the order in which they are meant to run.
    #[must_use]
    pub fn steps(&self) -> &[StepInfo] {
        &self.steps
    }

    /// Runs one step; a step that is done, or that there is not, does nothing. Its weight files must be there.
    ///
    /// # Errors
    /// A weight file that is missing, damaged or changed; a weight that is not finite; a full disk;
    /// [`EngineError::Cancelled`] when `watch` says stop. What is finished stays.
    pub fn run_step(&mut self, index: usize, watch: &dyn Watch) -> Result<(), EngineError> {
        let outcome = self.write_step(index, watch);
        self.building.keep(!self.journal.shards.is_empty());
        self.describe_steps()?;
        match outcome.and_then(|()| self.release()) {
            Err(error) if self.building.kept() => Err(self.interrupted(error)),
            outcome => outcome,
        }
    }

    fn interrupted(&self, error: EngineError) -> EngineError {
        EngineError::ConvertInterrupted { error: Box::new(error), folder: self.building.path().to_path_buf() }
    }

    fn write_step(&mut self, index: usize, watch: &dyn Watch) -> Result<(), EngineError> {
        let Some(step) = self.layout.steps.get(index) else { return Ok(()) };
        let unfinished = |shard: &usize| !self.journal.finished(&self.layout.shards[*shard].file());
        let shards: Vec<usize> = step.shards.clone().filter(unfinished).collect();
        if shards.is_empty() {
            return Ok(());
        }
        let files = names(&self.checkpoint.record.files, &step.files);
        let folder = self.building.path().to_path_buf();
        require_files(&self.checkpoint, &files)?;
        observe(&mut self.journal, Place { source: self.checkpoint.directory(), folder: &folder }, &files)?;
        let catalog = self.checkpoint.open_part(&files)?;
        self.checkpoint.check_unlisted(&catalog)?;
        let weights: Vec<usize> = shards.iter().flat_map(|shard| self.layout.shards[*shard].weights()).collect();
        let slots: Vec<_> = weights.iter().map(|weight| self.checkpoint.slots[*weight].clone()).collect();
        let locations = self.checkpoint.locate(&catalog, &slots)?;
        let all = &self.layout.shards;
        let of_step = || shards.iter().filter_map(|shard| all.get(*shard));
        let (payload, bytes) = (of_step().map(|shard| self.layout.payload(shard)).sum(), file_bytes(of_step())?);
        let before = file_bytes(all.iter().filter(|shard| self.journal.finished(&shard.file())))?;
        let work = Work {
            checkpoint: &self.checkpoint,
            layout: &self.layout,
            shards: shards.clone(),
            catalog: &catalog,
            locations: weights.into_iter().zip(locations).collect(),
            folder: &folder,
            rule: self.options.scale_rule,
            repack: self.options.repack,
            verify: self.options.verify,
            pool: &self.pool,
            watch,
            before,
            payload,
            bytes,
            total: file_bytes(all.iter())?,
        };
        let stages = pipeline::run(&work, &mut self.journal)?;
        pipeline::add(&mut self.stages, &stages);
        Ok(())
    }

    /// Checks what is left to check, writes the manifest and gives the container its name.
    ///
    /// # Errors
    /// A step that was not run; as [`Conversion::run_step`].
    pub fn finish(mut self, watch: &dyn Watch) -> Result<ConvertReport, EngineError> {
        if let Some(index) = self.steps.iter().position(|step| !step.done) {
            let what = format!("step {index} of {} was not run", self.steps.len());
            return Err(StoreError::Internal { what }.into());
        }
        match self.complete(watch) {
            Ok(()) => {}
            Err(error) => return Err(self.interrupted(error)),
        }
        let mut report = self.report()?;
        let folder = self.building.path().to_path_buf();
        report.destination = match self.building.commit() {
            Ok(destination) => destination,
            Err(error) => return Err(EngineError::ConvertInterrupted { error: Box::new(error.into()), folder }),
        };
        report.seconds = self.started.elapsed().as_secs_f64();
        Ok(report)
    }

    fn complete(&mut self, watch: &dyn Watch) -> Result<(), EngineError> {
        self.building.keep(true);
        let folder = self.building.path().to_path_buf();
        if self.options.verify {
            self.read_back(watch, &folder)?;
            self.release()?;
        }
        if folder.join(MANIFEST_NAME).is_file() {
            return Ok(());
        }
        write_file(&folder.join(MANIFEST_NAME), &self.manifest()?.to_json()?)?;
        verify::check_complete(&folder)
    }

    /// Reads back shards that an earlier run finished without doing so. One that differs is forgotten, to be written anew.
    fn read_back(&mut self, watch: &dyn Watch, folder: &Path) -> Result<(), EngineError> {
        let unread: Vec<FileDigest> =
            self.journal.shards.iter().filter(|shard| !shard.verified).map(|shard| shard.digest.clone()).collect();
        let total = unread.iter().map(|shard| shard.bytes).sum();
        let mut done = 0;
        for digest in unread {
            let checked = write::read_back(folder, &digest, &mut |bytes| {
                done += bytes;
                watch.progress(Phase::Verify, done, total) == crate::config::Control::Continue
            });
            if let Err(error) = checked {
                if error.code() == "model_corrupt" {
                    self.journal.shards.retain(|shard| shard.digest.file != digest.file);
                    self.journal.save(folder)?;
                }
                return Err(error);
            }
            for shard in self.journal.shards.iter_mut().filter(|shard| shard.digest.file == digest.file) {
                shard.verified = true;
            }
            self.journal.save(folder)?;
        }
        Ok(())
    }

    /// The finished shards, by name.
    fn digests(&self) -> Vec<FileDigest> {
        let mut shards: Vec<FileDigest> = self.journal.shards.iter().map(|shard| shard.digest.clone()).collect();
        shards.sort_by(|left, right| left.file.cmp(&right.file));
        shards
    }

    fn manifest(&self) -> Result<Manifest, EngineError> {
        let class = |class: super::ClassReport| ClassFormat { class: class.class.to_owned(), format: class.format };
        let rule = if self.options.repack { AS_SOURCE } else { self.options.scale_rule.name() };
        Ok(Manifest {
            format: FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            writer: concat!("colibri ", env!("CARGO_PKG_VERSION")).to_owned(),
            source: SourceModel {
                name: self.options.source_name.clone().unwrap_or_else(|| self.checkpoint.name()),
                model_type: self.checkpoint.family.to_owned(),
                bytes: self.journal.all_source_bytes(),
            },
            quantisation: self.layout.classes().into_iter().map(class).collect(),
            scale_rule: rule.to_owned(),
            multi_token_prediction: self.checkpoint.multi_token_prediction,
            shards: self.digests(),
            files: self.journal.companions.clone(),
        })
    }

    fn report(&self) -> Result<ConvertReport, EngineError> {
        let mut report =
            planned(&self.checkpoint, &self.layout, &self.options, &|file| self.journal.source_bytes(file))?;
        report.source_bytes = self.journal.all_source_bytes();
        for class in report.classes.iter_mut().filter(|_| !self.options.repack) {
            class.relative_error = Some(self.journal.relative_error(class.class));
        }
        report.shards = self.digests();
        report.bytes = report.shards.iter().map(|shard| shard.bytes).sum();
        report.steps = self.steps.len() as u64;
        report.files.clone_from(&self.journal.companions);
        report.resumed_shards = self.resumed_shards;
        report.verified_shards = self.journal.shards.iter().filter(|shard| shard.verified).count() as u64;
        report.stages = Some(self.stages);
        let there = |name: &str| self.journal.companions.iter().any(|file| file.file == name);
        report.notes = companions::missing(self.building.path(), &there);
        report.notes.extend(self.notes.iter().cloned());
        Ok(report)
    }

    fn describe_steps(&mut self) -> Result<(), EngineError> {
        self.steps = describe_steps(&self.checkpoint, &self.layout, &|file| self.journal.finished(file))?;
        Ok(())
    }

    /// Removes the weight files of the source of which all that was made is safe, if that is wanted: entered in the journal,
    /// and read back where that is asked for. A link is removed, not what it leads to; files of which nothing was taken
    /// over stay, and so do headers that were there before their files.
    fn release(&self) -> Result<(), EngineError> {
        if !self.options.delete_source {
            return Ok(());
        }
        let safe = |shard: &PlannedShard| {
            let entered = self.journal.shards.iter().find(|entered| entered.digest.file == shard.file());
            entered.is_some_and(|entered| entered.verified || !self.options.verify)
        };
        for (file, name) in (0u32..).zip(&self.checkpoint.record.files) {
            let mut users = self.layout.steps.iter().filter(|step| step.files.contains(&file)).peekable();
            let used = users.peek().is_some();
            if used && users.all(|step| step.shards.clone().all(|shard| safe(&self.layout.shards[shard]))) {
                let path = self.checkpoint.directory().join(name);
                match fault::point().and_then(|()| std::fs::remove_file(&path)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(remove_error(&path, &error).into());
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Whether every weight file that is still needed is there.
    pub(super) fn require_sources(&self) -> Result<(), EngineError> {
        let mut files: Vec<String> =
            self.steps.iter().filter(|step| !step.done).flat_map(|step| step.files.iter().cloned()).collect();
        files.sort_unstable();
        files.dedup();
        require_files(&self.checkpoint, &files)
    }

    /// Room for what is not written yet; what the source gives up on the same disk counts.
    fn require_room(&self) -> Result<(), EngineError> {
        let same_disk = self.options.delete_source && same_disk(self.checkpoint.directory(), self.building.path());
        let (mut written, mut given_up, mut most) = (0u64, 0u64, 0u64);
        for (index, step) in self.layout.steps.iter().enumerate() {
            for shard in step.shards.clone().map(|shard| &self.layout.shards[shard]) {
                if !self.journal.finished(&shard.file()) {
                    written = written.saturating_add(shard.plan.file_bytes()?);
                }
            }
            most = most.max(written.saturating_sub(given_up));
            if same_disk {
                let released = names(&self.checkpoint.record.files, &self.layout.releases(index));
                let there = |file: &String| std::fs::symlink_metadata(self.checkpoint.directory().join(file));
                let files = released.iter().filter_map(|file| there(file).ok()).filter(std::fs::Metadata::is_file);
                given_up = given_up.saturating_add(files.map(|facts| facts.len()).sum());
            }
        }
        match require_space(self.building.path(), most) {
            Err(error) if self.building.kept() => Err(self.interrupted(error.into())),
            outcome => Ok(outcome?),
        }
    }
}

/// The steps of a conversion of which these shards are finished.
pub(super) fn describe_steps(
    checkpoint: &Checkpoint,
    layout: &Layout,
    finished: &dyn Fn(&str) -> bool,
) -> Result<Vec<StepInfo>, EngineError> {
    let describe = |(index, step): (usize, &PlannedStep)| {
        let mut shards = step.shards.clone().map(|shard| &layout.shards[shard]);
        Ok(StepInfo {
            files: names(&checkpoint.record.files, &step.files),
            releases: names(&checkpoint.record.files, &layout.releases(index)),
            bytes: file_bytes(shards.clone())?,
            done: shards.all(|shard| finished(&shard.file())),
        })
    };
    layout.steps.iter().enumerate().map(describe).collect()
}

/// Bytes of the files of these shards, padding and headers included.
fn file_bytes<'a>(mut shards: impl Iterator<Item = &'a PlannedShard>) -> Result<u64, EngineError> {
    shards.try_fold(0u64, |sum, shard| Ok(sum.saturating_add(shard.plan.file_bytes()?)))
}

/// What is known of a container before it is written.
pub(super) fn planned(
    checkpoint: &Checkpoint,
    layout: &Layout,
    options: &ConvertOptions,
    source_bytes: &dyn Fn(&str) -> Option<u64>,
) -> Result<ConvertReport, EngineError> {
    let shards = layout.files()?;
    Ok(ConvertReport {
        version: REPORT_VERSION,
        destination: PathBuf::new(),
        dry_run: false,
        repack: options.repack,
        source_bytes: sum_of(&checkpoint.record.files, source_bytes),
        bytes: shards.iter().map(|shard| shard.bytes).sum(),
        classes: layout.classes(),
        shards,
        files: Vec::new(),
        unused: checkpoint.unused.clone(),
        multi_token_prediction: checkpoint.multi_token_prediction,
        steps: layout.steps.len() as u64,
        schedule: Vec::new(),
        resumed_shards: 0,
        verified_shards: 0,
        held: held(checkpoint, layout, source_bytes),
        space: None,
        estimate: None,
        stages: None,
        notes: Vec::new(),
        seconds: 0.0,
    })
}

/// Bytes of these weight files, as far as they are known; a journal may say anything.
fn sum_of(files: &[String], source_bytes: &dyn Fn(&str) -> Option<u64>) -> u64 {
    files.iter().filter_map(|file| source_bytes(file)).fold(0, u64::saturating_add)
}

/// The most weight files of the source that must be there at once, when each goes as soon as it can.
fn held(checkpoint: &Checkpoint, layout: &Layout, source_bytes: &dyn Fn(&str) -> Option<u64>) -> HeldFiles {
    let mut most = HeldFiles::default();
    let mut there: Vec<u32> = Vec::new();
    for (index, step) in layout.steps.iter().enumerate() {
        there.extend(step.files.iter().filter(|file| !there.contains(file)).copied().collect::<Vec<_>>());
        let names = names(&checkpoint.record.files, &there);
        most.files = most.files.max(names.len() as u64);
        most.bytes = most.bytes.max(sum_of(&names, source_bytes));
        let released = layout.releases(index);
        there.retain(|file| !released.contains(file));
    }
    most
}

fn names(files: &[String], indices: &[u32]) -> Vec<String> {
    indices.iter().filter_map(|index| files.get(*index as usize).cloned()).collect()
}

fn require_files(checkpoint: &Checkpoint, files: &[String]) -> Result<(), EngineError> {
    let there = |name: &String| checkpoint.directory().join(name).exists();
    let missing: Vec<String> = files.iter().filter(|name| !there(name)).cloned().collect();
    if missing.is_empty() { Ok(()) } else { Err(missing_files(checkpoint.directory(), files, &missing)) }
}

/// Compares weight files that are there, or their headers, with what the journal knows of them.
fn observe(journal: &mut Journal, place: Place<'_>, files: &[String]) -> Result<(), EngineError> {
    let source = place.source;
    for file in files {
        let path = resolve(source, file).map_err(|fault| StoreError::fault(source, fault))?;
        if let Some(path) = path.filter(|path| path.is_file()) {
            journal.observe(&path, file, place)?;
        } else if let Some(stub) = stub_of(source, file).map_err(|fault| StoreError::fault(source, fault))? {
            journal.observe_stub(&stub, &source.join(file), file, place)?;
        }
    }
    Ok(())
}

fn same_disk(left: &Path, right: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).ok().map(|facts| facts.dev());
    device(left).is_some() && device(left) == device(right)
}

fn pool(options: &ConvertOptions) -> WorkerPool {
    WorkerPool::new(workers(options))
}
