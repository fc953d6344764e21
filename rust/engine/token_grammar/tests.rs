//! Masks and steps over whole tokens: specials, stop tokens, the way back.

use colibri_grammar::gbnf;

use super::*;

const STOP: u32 = 9;
const TURN: u32 = 10;
const THINK: u32 = 11;

/// Letters, some longer tokens, an unused id, a stop token, a special one, and an added one that is text.
fn vocabulary() -> Arc<Vocabulary> {
    let tokens: [&[u8]; 12] =
        [b"a", b"b", b"ab", b"abc", b"\"", b"<", b"think>", b"", b"c", b"<|end|>", b"<|turn|>", b"<think>"];
    let special = [("<|end|>".to_owned(), STOP), ("<|turn|>".to_owned(), TURN)];
    Arc::new(Vocabulary::new(&tokens, special).unwrap())
}

fn start_with(text: &str, stop: &[u32]) -> Result<TokenGrammar, EngineError> {
    TokenGrammar::new(Arc::new(gbnf::compile(text).unwrap()), vocabulary(), stop)
}

fn start(text: &str) -> TokenGrammar {
    start_with(text, &[STOP]).unwrap()
}

/// The allowed tokens; each of them, and no other, is accepted, and going back leaves the state as it was.
fn allowed(state: &mut TokenGrammar) -> Vec<u32> {
    let mask = state.mask().unwrap();
    let (length, allowed_bytes) = (state.len(), state.allowed_bytes());
    for token in 0..14 {
        assert_eq!(state.accept(token).unwrap(), mask.allows(token), "token {token} after {length}");
        state.rewind(length);
        assert_eq!((state.len(), state.allowed_bytes()), (length, allowed_bytes));
    }
    assert_eq!(state.mask().unwrap(), mask);
    mask.iter().collect()
}

#[test]
fn tokens_fit_as_a_whole_and_stop_tokens_where_the_text_can_end() {
    let mut state = start("root ::= \"ab\" \"c\"?");
    assert_eq!(allowed(&mut state), [0, 2, 3]);
    assert!(!state.can_end() && state.accept(0).unwrap());
    assert_eq!(allowed(&mut state), [1], "a token that begins right and goes wrong is none");
    assert!(state.accept(1).unwrap() && state.can_end());
    assert_eq!(allowed(&mut state), [8, STOP]);
    assert_eq!(state.forced(8), b"", "nothing is forced where the text can end");
    assert!(state.accept(STOP).unwrap() && state.finished() && state.len() == 3 && state.can_end());
    assert_eq!(allowed(&mut state), [] as [u32; 0]);
    assert_eq!((state.forced(8), state.allowed_bytes()), (Vec::new(), ByteSet::EMPTY));
    state.rewind(1);
    assert!(!state.finished() && state.forced(8) == b"b");
    state.rewind(5);
    assert_eq!(state.len(), 1, "there is no way forward");
}

#[test]
fn special_tokens_are_named_and_never_text() {
    let mut state = start("root ::= \"<|turn|>\" | \"<think>\"");
    assert_eq!(allowed(&mut state), [5, THINK], "an added token that is not special is text");
    for grammar in ["root ::= <|turn|> \"a\"", "root ::= <[10]> \"a\""] {
        let mut state = start(grammar);
        assert_eq!(allowed(&mut state), [TURN]);
        assert_eq!(state.forced(8), b"");
        assert!(state.accept(TURN).unwrap() && state.forced(8) == b"a");
    }
    let mut state = start("root ::= <think> | !<|turn|> \"b\"");
    assert_eq!(allowed(&mut state), [0, 1, 2, 3, 4, 5, 6, 8, THINK], "neither stop tokens nor unused ids");
    assert!(state.accept(THINK).unwrap());
    assert_eq!(allowed(&mut state), [1, STOP], "both readings go on");
}

#[test]
fn a_stop_token_with_a_text_is_no_text() {
    let mut state = start_with("root ::= \"a\" \"ab\"?", &[2, STOP]).unwrap();
    assert_eq!(allowed(&mut state), [0]);
    assert!(state.accept(0).unwrap());
    assert_eq!(allowed(&mut state), [0, 2, STOP]);
    assert!(state.accept(2).unwrap() && state.finished());
}

#[test]
fn names_without_a_token_and_ids_beyond_the_vocabulary_are_refused() {
    let error = start_with("root ::= <nothing> <[77]> <|turn|>", &[STOP]).unwrap_err();
    let shown = error.to_string();
    assert_eq!(error.code(), "grammar_syntax");
    assert!(shown.contains("<nothing>") && shown.contains("<[77]>") && !shown.contains("<|turn|>"), "{shown}");
    let error = start_with("root ::= \"a\" <|end|>", &[STOP]).unwrap_err();
    assert_eq!(error.code(), "grammar_dead_end");
    assert!(error.to_string().contains("ends the text") && error.fix().is_some());
    assert_eq!(start_with("root ::= \"a\"", &[99]).unwrap_err().code(), "invalid_value");
    let special = [("x".to_owned(), 1)];
    assert_eq!(Vocabulary::new(&[b"a"], special).unwrap_err().code(), "invalid_value");
}

#[test]
fn going_back_and_forth_reaches_the_same_masks() {
    let grammar = "root ::= (\"a\" | \"ab\" | \"abc\" | \"b\" | \"c\"){3,6} \"\\\"\"";
    let mut state = start(grammar);
    let walk = [2, 3, 0, 1, 8, 4];
    let mut masks = Vec::new();
    for token in walk {
        masks.push(allowed(&mut state));
        if !state.accept(token).unwrap() {
            break;
        }
    }
    let reached = state.len();
    assert!(reached >= 4);
    for back in (0..reached).rev() {
        state.rewind(back);
        assert_eq!(allowed(&mut state), masks[back]);
        walk[back..reached].iter().for_each(|token| assert!(state.accept(*token).unwrap()));
    }
}

#[test]
fn a_narrowed_place_has_one_token_until_the_position_moves() {
    let mut state = start("root ::= (\"a\" | \"ab\" | \"b\")+");
    let before = allowed(&mut state);
    assert!(before.len() > 2);
    assert!(!state.narrow(4).unwrap() && allowed(&mut state) == before, "a token that may not follow");
    assert!(state.narrow(1).unwrap());
    assert_eq!((state.mask().unwrap().iter().collect(), state.len()), (vec![1], 0));
    assert!(!state.narrow(0).unwrap() && !state.accept(0).unwrap() && state.accept(1).unwrap());
    assert!(allowed(&mut state).len() > 2);
    assert!(state.narrow(1).unwrap());
    state.rewind(0);
    assert_eq!(allowed(&mut state), before);
}
