use super::super::write_file;
use super::*;

const NAMES: BuildNames =
    BuildNames { journals: &[".journal.json", ".source.json"], staging: "source", finished: ".done" };

fn open(target: &Path) -> Result<BuildDirectory, StoreError> {
    BuildDirectory::open(target, NAMES)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_folder_appears_with_its_content_or_not_at_all() {
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("one/two/model");
    let building = open(&target).unwrap();
    write_file(&building.path().join("x"), b"1").unwrap();
    assert!(!target.exists());
    drop(building);
    assert!(names(home.path()).is_empty(), "parents that were made are removed");
    let building = open(&target).unwrap();
    write_file(&building.path().join("x"), b"1").unwrap();
    assert_eq!(building.commit().unwrap(), target);
    assert_eq!(names(&home.path().join("one/two")), ["model"]);
    assert_eq!(names(&target), ["x"]);
}

#[test]
fn a_folder_with_finished_files_is_never_removed_as_a_whole() {
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("model");
    let mut building = open(&target).unwrap();
    write_file(&building.path().join("b.done"), b"1").unwrap();
    write_file(&building.path().join("a.done"), b"1").unwrap();
    assert_eq!(building.finished(), ["a.done", "b.done"]);
    building.keep(false);
    drop(building);
    assert!(home.path().join("model.partial/a.done").is_file(), "what it was made from may be gone");
    let building = open(&target).unwrap();
    fs::rename(building.path().join("a.done"), building.path().join(".a.done")).unwrap();
    fs::remove_file(building.path().join("b.done")).unwrap();
    drop(building);
    assert!(!home.path().join("model.partial").exists(), "a file that was being written is not finished");
}

#[test]
fn an_empty_folder_is_filled_and_a_used_one_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("model");
    fs::create_dir(&target).unwrap();
    let building = open(&target).unwrap();
    write_file(&building.path().join("x"), b"1").unwrap();
    building.commit().unwrap();
    let error = open(&target).unwrap_err();
    assert_eq!(error.code(), "output_not_writable");
    assert!(error.to_string().contains("not empty"), "{error}");
    assert_eq!(names(home.path()), ["model"]);
}

#[test]
fn files_dangling_links_and_a_live_run_are_named() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    for target in [file.clone(), file.join("below")] {
        let error = open(&target).unwrap_err();
        assert_eq!(error.code(), "output_not_writable");
        assert!(error.to_string().contains("file"), "{error}");
    }
    let link = home.path().join("link");
    std::os::unix::fs::symlink(home.path().join("nowhere"), &link).unwrap();
    assert_eq!(open(&link).unwrap_err().code(), "output_not_writable");
    let target = home.path().join("model");
    let running = open(&target).unwrap();
    let error = open(&target).unwrap_err();
    assert!(error.to_string().contains("model.partial"), "{error}");
    assert!(error.to_string().contains("another conversion is writing"), "{error}");
    assert!(running.path().exists(), "the other run's work is untouched");
}

#[test]
fn what_a_run_left_is_taken_up_and_what_is_not_ours_stays() {
    let home = tempfile::tempdir().unwrap();
    let (target, partial) = (home.path().join("model"), home.path().join("model.partial"));
    fs::create_dir_all(partial.join("below")).unwrap();
    fs::create_dir_all(partial.join("source")).unwrap();
    for name in [LOCK_NAME, ".journal.json", "dense-00001.safetensors", "done", ".x.7-0.partial", "source/part"] {
        fs::write(partial.join(name), "half").unwrap();
    }
    let building = open(&target).unwrap();
    assert!(building.kept() && open(&target).is_err(), "it is held now");
    let mut removed = building.clear(&|name| name == "done").unwrap();
    removed.sort();
    assert_eq!(removed, [".x.7-0.partial", "below", "dense-00001.safetensors"]);
    assert_eq!(names(&partial), [".journal.json", LOCK_NAME, "done", "source"]);
    drop(building);
    assert_eq!(names(&partial), [".journal.json", LOCK_NAME, "done", "source"], "it is kept for another run");
    open(&target).unwrap().commit().unwrap();
    assert_eq!((names(home.path()), names(&target)), (vec!["model".to_owned()], vec!["done".to_owned()]));
    fs::remove_dir_all(&target).unwrap();
    // Somebody's folder, file or link of that name is not touched.
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("mine"), "dear").unwrap();
    let error = open(&target).unwrap_err();
    assert!(error.code() == "output_not_writable" && error.to_string().contains("model.partial"), "{error}");
    assert_eq!(names(&partial), ["mine"]);
    let elsewhere = home.path().join("elsewhere");
    fs::rename(&partial, &elsewhere).unwrap();
    fs::write(elsewhere.join(LOCK_NAME), "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &partial).unwrap();
    assert!(open(&target).is_err());
    assert_eq!(names(&elsewhere), [LOCK_NAME, "mine"]);
    fs::remove_file(&partial).unwrap();
    fs::write(&partial, "").unwrap();
    assert!(open(&target).is_err());
}

#[test]
fn a_staging_folder_may_come_first_and_keeps_the_folder() {
    let home = tempfile::tempdir().unwrap();
    let (target, partial) = (home.path().join("model"), home.path().join("model.partial"));
    fs::create_dir_all(partial.join("source")).unwrap();
    drop(open(&target).unwrap());
    assert_eq!(names(&partial), [LOCK_NAME, "source"]);
    assert!(names(&open(&target).unwrap().commit().unwrap()).is_empty());
}

#[test]
fn a_folder_that_has_its_name_and_its_journal_is_finished() {
    let home = tempfile::tempdir().unwrap();
    let target = home.path().join("model");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("x"), "1").unwrap();
    assert!(open(&target).is_err());
    for (journal, ours) in [(".source.json", false), (".journal.json", true)] {
        fs::write(target.join(journal), "{}").unwrap();
        assert_eq!(open(&target).is_ok(), ours, "{journal}");
    }
    let building = open(&target).unwrap();
    assert_eq!(building.path(), target.canonicalize().unwrap());
    building.commit().unwrap();
    assert_eq!((names(home.path()), names(&target)), (vec!["model".to_owned()], vec!["x".to_owned()]));
}
