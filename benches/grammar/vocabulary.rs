//! A vocabulary of 154,880 tokens with the shape of those of large models, the same in every run.
//!
//! The tokens of the embedded model come first: they were learnt from text, and hold every single byte. The rest is made in
//! the proportions that byte-pair vocabularies of this size have: words of syllables with and without a space before them,
//! in three cases, together with beginnings of words; two to four ideographs; words of other scripts, whole or cut in
//! the middle of a character; pieces of code; signs in a row, as in `":"` or `"},{"`; every number of up to three digits;
//! runs of white space. The last ids are special tokens.

use std::collections::HashSet;
use std::path::Path;

use colibri::engine::fixture::SplitMix64;

/// Ids of the special tokens at the end; the first of them ends the text.
pub(crate) const SPECIAL: usize = 36;

const ONSETS: [&str; 24] = [
    "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr", "pl", "ch", "sh",
    "th", "",
];
const VOWELS: [&str; 12] = ["a", "e", "i", "o", "u", "ea", "ou", "ai", "ee", "io", "y", "au"];
const CODAS: [&str; 12] = ["", "", "", "n", "r", "s", "l", "t", "m", "nd", "ck", "ng"];
const ENDINGS: [&str; 10] = ["", "", "", "s", "ed", "ing", "er", "ly", "tion", "ment"];
const SIGNS: [&str; 34] = [
    "\"", "\"", "\"", ",", ",", ":", "{", "}", "[", "]", "(", ")", ";", "=", ".", "/", "\\", "<", ">", "-", "_", "'",
    "*", "+", "!", "?", "|", "&", "#", "$", "%", "@", "^", "`",
];

fn random(seed: u64) -> SplitMix64 {
    SplitMix64 { state: seed }
}

/// A number below `bound`; small ones are the likelier the larger `skew` is.
fn pick(random: &mut SplitMix64, bound: usize, skew: i32) -> usize {
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
    let place = ((f64::from(random.token(1 << 24)) / f64::from(1 << 24)).powi(skew) * bound as f64) as usize;
    place.min(bound - 1)
}

fn one<'a>(random: &mut SplitMix64, of: &[&'a str]) -> &'a str {
    of[pick(random, of.len(), 1)]
}

fn word(random: &mut SplitMix64) -> String {
    let syllables = 1 + pick(random, 3, 2);
    let mut word = String::new();
    for _ in 0..syllables {
        word += one(random, &ONSETS);
        word += one(random, &VOWELS);
        word += one(random, &CODAS);
    }
    word + one(random, &ENDINGS)
}

fn capitalised(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

/// A word as it stands in text, or its beginning: tokens of a learnt vocabulary begin alike.
fn written_word(random: &mut SplitMix64) -> String {
    let word = word(random);
    let word = match pick(random, 8, 1) {
        0 | 1 => capitalised(&word),
        2 => word.to_uppercase(),
        _ => word,
    };
    let cut = if pick(random, 2, 1) == 0 { 2 + pick(random, word.len(), 1) } else { word.len() };
    let space = if pick(random, 9, 1) < 5 { " " } else { "" };
    format!("{space}{}", &word[..cut.min(word.len())])
}

fn code(random: &mut SplitMix64) -> String {
    let (first, second) = (word(random), word(random));
    match pick(random, 6, 1) {
        0 => format!("_{first}"),
        1 => format!(".{first}"),
        2 => format!("({first}"),
        3 => format!("{}{}", &first[..first.len().min(4)], capitalised(&second)),
        4 => format!("\"{first}"),
        _ => format!("/{first}"),
    }
}

fn signs(random: &mut SplitMix64) -> String {
    let mut text = String::new();
    if pick(random, 4, 1) == 0 {
        text.push(' ');
    }
    for _ in 0..2 + pick(random, 4, 2) {
        text += one(random, &SIGNS);
    }
    match pick(random, 8, 1) {
        0 => text + "\n",
        1 => text + "\n\n",
        2 => text + " ",
        _ => text,
    }
}

fn script(random: &mut SplitMix64, first: u32, letters: usize, length: usize) -> String {
    let letter = |_| char::from_u32(first + pick(random, letters, 3) as u32).unwrap_or('?');
    (0..length).map(letter).collect()
}

fn foreign(random: &mut SplitMix64) -> Vec<u8> {
    let (first, letters) =
        [(0x430, 32), (0x430, 32), (0x627, 36), (0xAC00, 2000), (0xE01, 46), (0x3042, 80), (0xE0, 30)]
            [pick(random, 7, 1)];
    let length = 2 + pick(random, 5, 2);
    let text = script(random, first, letters, length);
    let mut bytes = if pick(random, 3, 1) == 0 { format!(" {text}") } else { text }.into_bytes();
    // One in twelve ends, or begins, in the middle of a character.
    match pick(random, 24, 1) {
        0 => bytes.truncate(bytes.len() - 1),
        1 => drop(bytes.remove(0)),
        _ => {}
    }
    bytes
}

/// The tokens that the embedded model learnt, without the special ones, `[2540]` of bytes.
fn learnt() -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/colibri/data/demo/tokenizer.json");
    let text = std::fs::read_to_string(path).expect("the embedded model's tokenizer");
    let tokenizer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let vocabulary = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    // The printable characters that stand for bytes in tokenizer files.
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let others = (0..256).filter(|byte| !printable(byte)).zip(256u32..).map(|(byte, shown)| (shown, byte));
    let shown: std::collections::HashMap<u32, u32> = (0..256).filter(printable).map(|b| (b, b)).chain(others).collect();
    vocabulary.keys().map(|key| key.chars().map(|c| shown[&u32::from(c)] as u8).collect()).collect()
}

/// The bytes of each token, `[tokens]`; none for the special ones.
pub(crate) fn tokens(count: usize) -> Vec<Vec<u8>> {
    let wanted = count - SPECIAL;
    let mut tokens = learnt();
    let mut known: HashSet<Vec<u8>> = tokens.iter().cloned().collect();
    let mut add = |tokens: &mut Vec<Vec<u8>>, token: Vec<u8>| {
        if !token.is_empty() && tokens.len() < wanted && known.insert(token.clone()) {
            tokens.push(token);
        }
    };
    for digits in 1..=3usize {
        (0..10usize.pow(digits as u32)).for_each(|n| add(&mut tokens, format!("{n:0digits$}").into_bytes()));
    }
    for length in 1..=80 {
        add(&mut tokens, " ".repeat(length).into_bytes());
        add(&mut tokens, format!("\n{}", " ".repeat(length)).into_bytes());
        if length <= 24 {
            add(&mut tokens, "\n".repeat(length).into_bytes());
            add(&mut tokens, "\t".repeat(length).into_bytes());
        }
    }
    for common in
        ["\":\"", "\":", "\",\"", "\"},{\"", "\":{\"", "\":[", "\"}", "\"]", "},", "\"},", "\": \"", "[\"", "{\""]
    {
        add(&mut tokens, common.as_bytes().to_vec());
    }
    let mut random = random(7);
    while tokens.len() < wanted {
        let token = match pick(&mut random, 100, 1) {
            0..62 => written_word(&mut random).into_bytes(),
            62..78 => {
                let length = 1 + pick(&mut random, 4, 2);
                script(&mut random, 0x4E00, 7000, length).into_bytes()
            }
            78..89 => foreign(&mut random),
            89..96 => code(&mut random).into_bytes(),
            _ => signs(&mut random).into_bytes(),
        };
        add(&mut tokens, token);
    }
    tokens.resize(count, Vec::new());
    tokens
}

/// One line about the tokens: their mean length, and the shares that decide how long masks take.
pub(crate) fn describe(tokens: &[Vec<u8>]) -> String {
    let text: Vec<&Vec<u8>> = tokens.iter().filter(|token| !token.is_empty()).collect();
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let share = |count: usize| 100.0 * count as f64 / text.len() as f64;
    let of = |fits: &dyn Fn(&[u8]) -> bool| share(text.iter().filter(|token| fits(token)).count());
    format!(
        "{} tokens, {:.1} bytes in the mean, {} at most; {:.0} % begin with a space, {:.0} % have bytes beyond ASCII, \
         {:.1} % have a quote or a backslash",
        tokens.len(),
        share(text.iter().map(|token| token.len()).sum()) / 100.0,
        text.iter().map(|token| token.len()).max().unwrap_or(0),
        of(&|token| token[0] == b' '),
        of(&|token| !token.is_ascii()),
        of(&|token| token.iter().any(|byte| b"\"\\".contains(byte))),
    )
}
