//! Files beyond the sizes that narrow offsets reach.

use std::io::{Seek, SeekFrom, Write};

use colibri_store::{Catalog, ReadJob, SOURCES, Span};

use crate::Folder;

#[test]
fn ex_08_a_tensor_beyond_four_gibibytes_is_read_by_every_source() {
    const BEFORE: u64 = 4_831_838_208;
    const WHOLE: u64 = 5 << 30;
    let known: Vec<u8> = (0..64u8).map(|i| i.wrapping_mul(37) ^ 0x5a).collect();
    let mut header = format!(
        r#"{{"before":{{"dtype":"U8","shape":[{BEFORE}],"data_offsets":[0,{BEFORE}]}},
            "w":{{"dtype":"U8","shape":[64],"data_offsets":[{BEFORE},{}]}},
            "after":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{WHOLE}]}}}}"#,
        BEFORE + 64,
        WHOLE - BEFORE - 64,
        BEFORE + 64,
    );
    while !(header.len() + 8).is_multiple_of(64) {
        header.push(' ');
    }
    let folder = Folder::new();
    let path = folder.write("model.safetensors", &crate::file_bytes(header.as_bytes(), &[]));
    let start = 8 + header.len() as u64;
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(start + WHOLE).unwrap();
    file.seek(SeekFrom::Start(start + BEFORE)).unwrap();
    file.write_all(&known).unwrap();
    drop(file);

    let catalog = Catalog::open(folder.path()).unwrap();
    let tensor = catalog.get("w").unwrap();
    assert_eq!(tensor.offset, start + BEFORE);
    let span = Span { file: tensor.file, offset: tensor.offset, bytes: tensor.bytes };
    for entry in SOURCES {
        let source = (entry.open)(catalog.files()).unwrap();
        let mut found = [0u8; 64];
        source.read(&mut [ReadJob { span, into: &mut found }]).unwrap();
        assert_eq!(found[..], known[..], "{}", entry.kind);
        if let Some(lent) = source.borrow(span) {
            assert_eq!(lent[..], known[..], "{}", entry.kind);
        }
    }
}
