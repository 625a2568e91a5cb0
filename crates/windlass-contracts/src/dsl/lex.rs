//! Splits the text of an expression into tokens.

use std::ops::Range;

use winnow::{
    LocatingSlice, Parser as _,
    combinator::{alt, opt},
    error::EmptyError,
    stream::{Location as _, Stream as _},
    token::{one_of, take_while},
};

use super::{
    CHARACTERS_MAX, DEREFERENCES_MAX, EXPRESSION_NUMBER, EXPRESSION_SYNTAX, EXPRESSION_TOO_LONG,
    EXPRESSION_TOO_MANY_DEREFERENCES, Error, ast::Operator, error::WithoutHelp,
};
use crate::number::{self, Decimal};

type Input<'a> = LocatingSlice<&'a str>;
type Scan<T> = Result<T, EmptyError>;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Open,
    Close,
    OpenList,
    CloseList,
    Comma,
    Dot,
    Not,
    And,
    Or,
    Compare(Operator),
    Number(Decimal),
    Text(String),
    Word(String),
}

/// Splits a text of at most [`CHARACTERS_MAX`] characters. The number of tokens is limited by it.
pub(crate) fn tokens(text: &str) -> Result<Vec<(Token, Range<usize>)>, Error> {
    check_length(text)?;
    let mut input = LocatingSlice::new(text);
    let mut found = Vec::new();
    let mut dereferences = 0;
    loop {
        space(&mut input);
        if input.is_empty() {
            return Ok(found);
        }
        let start = input.current_token_start();
        let token = token(&mut input)?;
        let span = start..input.current_token_start();
        if token == Token::Dot {
            dereferences += 1;
            if dereferences > DEREFERENCES_MAX {
                return Err(Error::new(
                    EXPRESSION_TOO_MANY_DEREFERENCES,
                    span.into(),
                    format!("the expression has more than {DEREFERENCES_MAX} dereferences"),
                )
                .help("split the expression over several nodes or edges"));
            }
        }
        found.push((token, span));
    }
}

fn check_length(text: &str) -> Result<(), Error> {
    match text.char_indices().nth(CHARACTERS_MAX) {
        None => Ok(()),
        Some((at, _)) => Err(Error::new(
            EXPRESSION_TOO_LONG,
            (at..at).into(),
            format!("the expression has more than {CHARACTERS_MAX} characters"),
        )
        .help("split the expression over several nodes or edges, or use a decision table")),
    }
}

fn token(input: &mut Input<'_>) -> Result<Token, Error> {
    let first = input.chars().next().unwrap_or_default();
    match first {
        '\'' => text(input),
        '-' | '0'..='9' => number(input),
        'a'..='z' | 'A'..='Z' | '_' => Ok(match scan(input, word) {
            Some("in") => Token::Compare(Operator::In),
            Some("contains") => Token::Compare(Operator::Contains),
            word => Token::Word(word.unwrap_or_default().to_owned()),
        }),
        _ => scan(input, symbol).ok_or_else(|| unexpected(input, first)),
    }
}

fn scan<'a, T>(input: &mut Input<'a>, parser: impl Fn(&mut Input<'a>) -> Scan<T>) -> Option<T> {
    let start = input.checkpoint();
    let found = parser(input).ok();
    if found.is_none() {
        input.reset(&start);
    }
    found
}

fn space(input: &mut Input<'_>) {
    let _: Scan<&str> = take_while(0.., [' ', '\t', '\n', '\r']).parse_next(input);
}

fn word<'a>(input: &mut Input<'a>) -> Scan<&'a str> {
    (
        one_of(|c: char| c.is_ascii_alphabetic() || c == '_'),
        take_while(0.., |c: char| c.is_ascii_alphanumeric() || c == '_'),
    )
        .take()
        .parse_next(input)
}

fn digits<'a>(input: &mut Input<'a>) -> Scan<&'a str> {
    (opt('-'), take_while(1.., '0'..='9'), opt(('.', take_while(1.., '0'..='9'))))
        .take()
        .parse_next(input)
}

fn comparison(input: &mut Input<'_>) -> Scan<Operator> {
    alt((
        "==".value(Operator::Equal),
        "!=".value(Operator::NotEqual),
        ">=".value(Operator::GreaterEqual),
        "<=".value(Operator::LessEqual),
        ">".value(Operator::Greater),
        "<".value(Operator::Less),
    ))
    .parse_next(input)
}

fn symbol(input: &mut Input<'_>) -> Scan<Token> {
    alt((
        comparison.map(Token::Compare),
        alt(("&&".value(Token::And), "||".value(Token::Or), "!".value(Token::Not))),
        alt((
            "(".value(Token::Open),
            ")".value(Token::Close),
            "[".value(Token::OpenList),
            "]".value(Token::CloseList),
            ",".value(Token::Comma),
            ".".value(Token::Dot),
        )),
    ))
    .parse_next(input)
}

fn number(input: &mut Input<'_>) -> Result<Token, Error> {
    let start = input.current_token_start();
    let Some(text) = scan(input, digits) else {
        let help = "write a number directly behind a minus sign; expressions do not compute";
        return Err(unexpected_at(input, '-').help(help));
    };
    let span = start..start + text.len();
    if let Some(next) = input.chars().next().filter(|c| c.is_alphanumeric() || *c == '_') {
        return Err(unexpected_at(input, next).help("write numbers as 12 or 12.50"));
    }
    text.parse().map(Token::Number).map_err(|error| match error {
        number::Error::NotANumber(_) => {
            Error::new(EXPRESSION_SYNTAX, span.into(), error.to_string())
                .help("write numbers without leading zeros")
        }
        number::Error::Inexact(_) => Error::new(EXPRESSION_NUMBER, span.into(), error.to_string())
            .help("write fewer digits, or compare with a field"),
    })
}

fn text(input: &mut Input<'_>) -> Result<Token, Error> {
    let start = input.current_token_start();
    let rest: &str = input;
    let mut value = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        let here = start + at;
        match c {
            '\'' => {
                input.next_slice(at + 1);
                return Ok(Token::Text(value));
            }
            '\\' => match chars.next() {
                Some((_, c @ ('\'' | '\\'))) => value.push(c),
                _ => {
                    return Err(Error::new(
                        EXPRESSION_SYNTAX,
                        (here..here + 1).into(),
                        "an unknown escape in a text",
                    )
                    .help("a text knows the escapes \\' and \\\\"));
                }
            },
            c if c.is_control() => {
                return Err(Error::new(
                    EXPRESSION_SYNTAX,
                    (here..here + c.len_utf8()).into(),
                    format!("a text has the control character U+{:04X}", u32::from(c)),
                )
                .help("remove it; a text stands on one line"));
            }
            c => value.push(c),
        }
    }
    Err(Error::new(EXPRESSION_SYNTAX, (start..start + rest.len()).into(), "a text has no end")
        .help("close it with a quote '"))
}

fn unexpected_at(input: &Input<'_>, c: char) -> WithoutHelp {
    let at = input.current_token_start();
    let span = at..at + c.len_utf8();
    Error::new(EXPRESSION_SYNTAX, span.into(), format!("unexpected {c:?}"))
}

fn unexpected(input: &Input<'_>, c: char) -> Error {
    unexpected_at(input, c).help(match c {
        '"' => "write texts in single quotes",
        '=' => "compare with ==",
        '&' => "combine with &&",
        '|' => "combine with ||",
        '+' | '*' | '/' | '%' => "expressions do not compute; store the value in a field",
        c if !c.is_ascii() => "names are ASCII letters, digits and _",
        _ => "remove it; an expression has paths, numbers, 'texts', operators and parentheses",
    })
}
