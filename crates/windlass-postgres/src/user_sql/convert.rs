//! Converts parameters of user SQL to the types that a statement expects.

use bytes::BytesMut;
use postgres_types::{IsNull, Kind, ToSql, Type, to_sql_checked};
use windlass_kernel::SqlValue;

/// A converted parameter. Types that PostgreSQL must parse are sent as text.
#[derive(Debug)]
pub(crate) enum Converted<'a> {
    Null,
    Bool(bool),
    Int2(i16),
    Int4(i32),
    Int8(i64),
    Float4(f32),
    Float8(f64),
    Bytes(&'a [u8]),
    Text(String),
}

impl<'a> Converted<'a> {
    /// Converts a value to a type, or returns why that is not possible.
    pub(crate) fn of(value: &'a SqlValue, ty: &Type) -> Result<Self, String> {
        let wrong = |what: &str| Err(format!("{what} cannot be a parameter of type {ty}"));
        let narrow = |value: i64| format!("{value} is out of range for type {ty}");
        match value {
            SqlValue::Null => Ok(Self::Null),
            SqlValue::Bool(value) => match *ty {
                Type::BOOL => Ok(Self::Bool(*value)),
                _ if is_text(ty) => Ok(Self::Text(value.to_string())),
                _ => wrong("a boolean"),
            },
            SqlValue::Int(value) => match *ty {
                Type::INT8 => Ok(Self::Int8(*value)),
                Type::INT4 => i32::try_from(*value).map(Self::Int4).map_err(|_| narrow(*value)),
                Type::INT2 => i16::try_from(*value).map(Self::Int2).map_err(|_| narrow(*value)),
                Type::FLOAT8 => Ok(Self::Float8(*value as f64)),
                Type::FLOAT4 => Ok(Self::Float4(*value as f32)),
                Type::BOOL | Type::BYTEA | Type::UUID => wrong("an integer"),
                _ => Ok(Self::Text(value.to_string())),
            },
            SqlValue::Float(value) => match *ty {
                Type::FLOAT8 => Ok(Self::Float8(*value)),
                Type::FLOAT4 => Ok(Self::Float4(*value as f32)),
                Type::NUMERIC => Ok(Self::Text(value.to_string())),
                _ if is_text(ty) => Ok(Self::Text(value.to_string())),
                _ => wrong("a floating-point number"),
            },
            // The server parses text into the type that it needs, and reports errors.
            SqlValue::Text(value) => match *ty {
                Type::BYTEA => Ok(Self::Bytes(value.as_bytes())),
                _ => Ok(Self::Text(value.clone())),
            },
            SqlValue::Bytes(value) => match *ty {
                Type::BYTEA => Ok(Self::Bytes(value)),
                _ => wrong("bytes"),
            },
        }
    }
}

fn is_text(ty: &Type) -> bool {
    matches!(*ty, Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN)
        || matches!(ty.kind(), Kind::Enum(_))
}

impl ToSql for Converted<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => Ok(IsNull::Yes),
            Self::Bool(value) => value.to_sql(ty, out),
            Self::Int2(value) => value.to_sql(ty, out),
            Self::Int4(value) => value.to_sql(ty, out),
            Self::Int8(value) => value.to_sql(ty, out),
            Self::Float4(value) => value.to_sql(ty, out),
            Self::Float8(value) => value.to_sql(ty, out),
            Self::Bytes(value) => value.to_sql(ty, out),
            Self::Text(value) => {
                out.extend_from_slice(value.as_bytes());
                Ok(IsNull::No)
            }
        }
    }

    // `of` has checked the type already.
    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> postgres_types::Format {
        match self {
            Self::Text(_) => postgres_types::Format::Text,
            _ => postgres_types::Format::Binary,
        }
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: SqlValue, ty: Type, expect: &str) {
        let found = match Converted::of(&value, &ty) {
            Ok(converted) => format!("{converted:?}"),
            Err(message) => message,
        };
        assert!(found.contains(expect), "expected {expect:?} in {found:?}");
    }

    #[test]
    fn values_are_converted_to_the_expected_type() {
        check(SqlValue::Int(7), Type::INT2, "Int2(7)");
        check(SqlValue::Int(70_000), Type::INT2, "70000 is out of range for type int2");
        check(SqlValue::Int(7), Type::NUMERIC, "Text(\"7\")");
        check(SqlValue::Int(7), Type::TEXT, "Text(\"7\")");
        check(SqlValue::Int(7), Type::UUID, "an integer cannot be a parameter of type uuid");
        check(SqlValue::Float(0.5), Type::FLOAT4, "Float4(0.5)");
        check(SqlValue::Float(0.5), Type::INT4, "a floating-point number cannot be");
        check(SqlValue::Bool(true), Type::BOOL, "Bool(true)");
        check(SqlValue::Bool(true), Type::INT4, "a boolean cannot be");
        check(SqlValue::Text("{}".into()), Type::JSONB, "Text(\"{}\")");
        check(SqlValue::Text("2026-01-01".into()), Type::TIMESTAMPTZ, "Text");
        check(SqlValue::Bytes(vec![0, 1].into()), Type::BYTEA, "Bytes([0, 1])");
        check(SqlValue::Bytes(vec![0, 1].into()), Type::TEXT, "bytes cannot be");
        check(SqlValue::Null, Type::UUID, "Null");
    }
}
