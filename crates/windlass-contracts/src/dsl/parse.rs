//! Builds the tree of an expression and counts its depth on the way.
//!
//! The parser recurses only for an open parenthesis, and refuses the eleventh before it recurses.
//! Chains of `&&` and of `||` are one node each, so that a long chain is not deep.

use std::ops::Range;

use super::{
    DEPTH_MAX, EXPRESSION_CHAINED_COMPARISON, EXPRESSION_SYNTAX, EXPRESSION_TOO_DEEP,
    EXPRESSION_UNKNOWN_NAME, Error,
    ast::{Expr, Literal, Namespace, Node, Path},
    lex::{Token, tokens},
};
use crate::diagnostic::Span;

pub(crate) fn parse(text: &str) -> Result<Expr, Error> {
    let parse = || {
        let tokens = tokens(text)?;
        let mut parser = Parser { tokens: &tokens, at: 0, end: text.len(), open: 0 };
        let found = parser.any()?;
        match parser.peek() {
            None => Ok(found),
            Some(_) => Err(parser.unexpected("an operator or the end")),
        }
    };
    parse().map_err(|error: Error| error.of(text))
}

/// Parses a path that stands alone, as in templates and decision tables.
pub(crate) fn parse_path(text: &str) -> Result<Path, Error> {
    match parse(text)?.node {
        // Spaces and parentheses around it would move the places of its fields.
        Node::Path(path) if path.to_string() == text => Ok(path),
        _ => Err(Error::new(EXPRESSION_SYNTAX, (0..text.len()).into(), "this is not a path")
            .help("write a path such as entity.total")
            .of(text)),
    }
}

struct Parser<'a> {
    tokens: &'a [(Token, Range<usize>)],
    at: usize,
    /// The length of the text, which is the place of a token that is missing at the end.
    end: usize,
    open: usize,
}

impl Parser<'_> {
    fn any(&mut self) -> Result<Expr, Error> {
        self.chain(&Token::Or, Self::all, Node::Or)
    }

    fn all(&mut self) -> Result<Expr, Error> {
        self.chain(&Token::And, Self::comparison, Node::And)
    }

    fn chain(
        &mut self,
        operator: &Token,
        operand: impl Fn(&mut Self) -> Result<Expr, Error>,
        node: impl Fn(Vec<Expr>) -> Node,
    ) -> Result<Expr, Error> {
        let first = operand(self)?;
        if self.peek() != Some(operator) {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.take(operator) {
            operands.push(operand(self)?);
        }
        build(node(operands))
    }

    fn comparison(&mut self) -> Result<Expr, Error> {
        let left = self.unary()?;
        let Some(Token::Compare(operator)) = self.peek() else { return Ok(left) };
        let operator = *operator;
        self.at += 1;
        let right = self.unary()?;
        if let Some(Token::Compare(next)) = self.peek() {
            return Err(Error::new(
                EXPRESSION_CHAINED_COMPARISON,
                self.span(),
                format!("comparisons do not chain: {} follows a comparison", next.as_str()),
            )
            .help("write a < b && b < c"));
        }
        build(Node::Compare(Box::new(left), operator, Box::new(right)))
    }

    fn unary(&mut self) -> Result<Expr, Error> {
        let start = self.span().start;
        if !self.take(&Token::Not) {
            return self.primary();
        }
        if self.peek() == Some(&Token::Not) {
            return Err(Error::new(EXPRESSION_SYNTAX, self.span(), "! follows !")
                .help("! takes a path, a literal or parentheses"));
        }
        let mut not = build(Node::Not(Box::new(self.primary()?)))?;
        not.span.start = start;
        Ok(not)
    }

    fn primary(&mut self) -> Result<Expr, Error> {
        let span = self.span();
        let literal = |parser: &mut Self, literal| {
            parser.at += 1;
            Ok(Expr { node: Node::Literal(literal), span, depth: 1 })
        };
        match self.peek() {
            Some(Token::Number(value)) => literal(self, Literal::Number(*value)),
            Some(Token::Text(value)) => literal(self, Literal::Text(value.clone())),
            Some(Token::Word(word)) => match word.as_str() {
                "null" => literal(self, Literal::Null),
                "true" => literal(self, Literal::Bool(true)),
                "false" => literal(self, Literal::Bool(false)),
                _ => self.path(),
            },
            Some(Token::OpenList) => self.list(),
            Some(Token::Open) => self.parentheses(),
            _ => Err(self.unexpected("a path, a literal or an open parenthesis")),
        }
    }

    fn parentheses(&mut self) -> Result<Expr, Error> {
        let opening = self.span();
        if self.open == DEPTH_MAX {
            return Err(too_deep(opening, "parentheses nest"));
        }
        self.at += 1;
        self.open += 1;
        let mut inner = self.any()?;
        let closing = self.span();
        if !self.take(&Token::Close) {
            return Err(self.unexpected("an operator or )"));
        }
        self.open -= 1;
        inner.span = Span { start: opening.start, end: closing.end };
        Ok(inner)
    }

    fn list(&mut self) -> Result<Expr, Error> {
        let start = self.span().start;
        self.at += 1;
        let mut items = Vec::new();
        loop {
            let place = self.span();
            let item = match self.peek() {
                Some(Token::Number(value)) => Literal::Number(*value),
                Some(Token::Text(value)) => Literal::Text(value.clone()),
                Some(Token::Word(word)) if word == "true" => Literal::Bool(true),
                Some(Token::Word(word)) if word == "false" => Literal::Bool(false),
                _ => return Err(self.unexpected("a number, a text, true or false")),
            };
            self.at += 1;
            items.push((item, place));
            let end = self.span().end;
            if self.take(&Token::CloseList) {
                return Ok(Expr { node: Node::List(items), span: Span { start, end }, depth: 1 });
            }
            if !self.take(&Token::Comma) {
                return Err(self.unexpected(", or ]"));
            }
        }
    }

    fn path(&mut self) -> Result<Expr, Error> {
        let mut span = self.span();
        let Some(Token::Word(word)) = self.peek() else {
            return Err(self.unexpected("a path"));
        };
        let Some(namespace) = Namespace::ALL.into_iter().find(|name| name.as_str() == word) else {
            let found = format!("{word:?} is not a namespace");
            return Err(Error::new(EXPRESSION_UNKNOWN_NAME, span, found)
                .help("begin a path with entity, actor, org or context, or write now"));
        };
        self.at += 1;
        let mut fields = Vec::new();
        while self.peek() == Some(&Token::Dot) {
            let dot = self.span();
            if namespace == Namespace::Now {
                return Err(Error::new(EXPRESSION_UNKNOWN_NAME, dot, "now has no fields")
                    .help("now is a point in time; compare it with < and >"));
            }
            self.at += 1;
            let place = self.span();
            if dot.start != span.end || (place.start != dot.end && self.peek().is_some()) {
                return Err(Error::new(EXPRESSION_SYNTAX, dot, "a path has spaces")
                    .help("write it as entity.total"));
            }
            fields.push(self.field()?);
            span.end = place.end;
        }
        if fields.is_empty() && namespace != Namespace::Now {
            let name = namespace.as_str();
            return Err(Error::new(EXPRESSION_SYNTAX, span, format!("{name} is not a value"))
                .help(format!("write a field of it, for example {name}.id")));
        }
        Ok(Expr { node: Node::Path(Path { namespace, fields }), span, depth: 1 })
    }

    fn field(&mut self) -> Result<String, Error> {
        let name = match self.peek() {
            Some(Token::Word(word)) => word.clone(),
            // A field may have the name of a word operator.
            Some(Token::Compare(operator)) if operator.as_str().starts_with(['i', 'c']) => {
                operator.as_str().to_owned()
            }
            _ => return Err(self.unexpected("the name of a field")),
        };
        self.at += 1;
        Ok(name)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn take(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    fn span(&self) -> Span {
        self.tokens.get(self.at).map_or(self.end..self.end, |(_, span)| span.clone()).into()
    }

    fn unexpected(&self, expected: &str) -> Error {
        let found = match self.peek() {
            None => format!("the expression ends where {expected} must follow"),
            Some(_) => format!("expected {expected}"),
        };
        Error::new(EXPRESSION_SYNTAX, self.span(), found).help(format!("write {expected} here"))
    }
}

/// Makes a node, unless it would be too deep.
fn build(node: Node) -> Result<Expr, Error> {
    let (span, depth) = match &node {
        Node::Not(operand) => (operand.span, operand.depth),
        Node::Compare(left, _, right) => {
            (Span { start: left.span.start, end: right.span.end }, left.depth.max(right.depth))
        }
        Node::And(operands) | Node::Or(operands) => (
            Span {
                start: operands.first().map_or(0, |operand| operand.span.start),
                end: operands.last().map_or(0, |operand| operand.span.end),
            },
            operands.iter().map(|operand| operand.depth).max().unwrap_or_default(),
        ),
        Node::Literal(_) | Node::List(_) | Node::Path(_) => (Span { start: 0, end: 0 }, 0),
    };
    if depth == DEPTH_MAX {
        return Err(too_deep(span, "operators nest"));
    }
    Ok(Expr { node, span, depth: depth + 1 })
}

fn too_deep(span: Span, subject: &str) -> Error {
    Error::new(EXPRESSION_TOO_DEEP, span, format!("{subject} deeper than {DEPTH_MAX} levels"))
        .help("split the expression over several nodes or edges")
}
