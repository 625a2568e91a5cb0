//! Arrays of composite rows in PostgreSQL's binary format, encoded directly from the ops.
//!
//! A batch has many columns in few groups. One array of records for a group is one parameter and
//! one function scan; parallel arrays would need one of each for every column.

use bytes::{BufMut, BytesMut};
use postgres_types::{IsNull, Kind, ToSql, Type, to_sql_checked};
use uuid::Uuid;
use windlass_kernel::{Body, CausalRef, Timestamp};

/// The most memory that a group keeps for the next batch: enough for a full batch of small bodies.
const KEPT_BYTES_MAX: usize = 1024 * 1024;

/// The encoded rows of one group.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    count: i32,
}

impl Records {
    /// Removes the rows. Keeps their memory up to a limit.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES_MAX);
    }

    /// Adds a row with this number of fields.
    pub(crate) fn row(&mut self, fields: i32, write: impl FnOnce(&mut Record<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&fields.to_be_bytes());
        let mut record = Record { bytes: &mut self.bytes, fields: 0 };
        write(&mut record);
        // The server refuses the whole batch if a row does not match its type.
        debug_assert_eq!(record.fields, fields, "wrong number of fields in a record");
        let length = (self.bytes.len() - start - 4) as i32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_be_bytes());
        self.count += 1;
    }
}

impl ToSql for Records {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        if self.count == 0 {
            return Ok(IsNull::Yes);
        }
        let Kind::Array(element) = ty.kind() else {
            return Err(format!("{ty} is not an array").into());
        };
        out.reserve(self.bytes.len() + 20);
        out.put_i32(1);
        out.put_i32(0);
        out.put_u32(element.oid());
        out.put_i32(self.count);
        out.put_i32(1);
        out.extend_from_slice(&self.bytes);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(ty.kind(), Kind::Array(element) if matches!(element.kind(), Kind::Composite(_)))
    }

    to_sql_checked!();
}

/// One row while it is encoded, field by field, in the order of its type.
pub(crate) struct Record<'a> {
    bytes: &'a mut Vec<u8>,
    fields: i32,
}

impl Record<'_> {
    fn field(&mut self, ty: &Type, bytes: Option<&[u8]>) -> &mut Self {
        let Some(bytes) = bytes else { return self.null(ty) };
        self.fields += 1;
        self.bytes.extend_from_slice(&head(ty, bytes.len()));
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn null(&mut self, ty: &Type) -> &mut Self {
        self.fields += 1;
        let mut field = head(ty, 0);
        field[4..].copy_from_slice(&(-1_i32).to_be_bytes());
        self.bytes.extend_from_slice(&field);
        self
    }

    pub(crate) fn int2(&mut self, value: i16) -> &mut Self {
        self.field(&Type::INT2, Some(&value.to_be_bytes()))
    }

    pub(crate) fn int4(&mut self, value: usize) -> &mut Self {
        self.field(&Type::INT4, Some(&(value as i32).to_be_bytes()))
    }

    pub(crate) fn int8(&mut self, value: impl Into<Option<i64>>) -> &mut Self {
        let bytes = value.into().map(i64::to_be_bytes);
        self.field(&Type::INT8, bytes.as_ref().map(|bytes| &bytes[..]))
    }

    // Counters never reach the sign bit; a negative value is reported as damage when it is read.
    pub(crate) fn count(&mut self, value: u64) -> &mut Self {
        self.int8(value as i64)
    }

    pub(crate) fn time(&mut self, value: impl Into<Option<Timestamp>>) -> &mut Self {
        self.int8(value.into().map(Timestamp::as_micros))
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.field(&Type::BOOL, Some(&[u8::from(value)]))
    }

    pub(crate) fn uuid(&mut self, value: impl Into<Option<Uuid>>) -> &mut Self {
        let value = value.into();
        self.field(&Type::UUID, value.as_ref().map(|uuid| &uuid.as_bytes()[..]))
    }

    pub(crate) fn text<'t>(&mut self, value: impl Into<Option<&'t str>>) -> &mut Self {
        self.field(&Type::TEXT, value.into().map(str::as_bytes))
    }

    pub(crate) fn bytes<'t>(&mut self, value: impl Into<Option<&'t [u8]>>) -> &mut Self {
        self.field(&Type::BYTEA, value.into())
    }

    /// Encodes the bytes of a body and its encoding as two fields.
    pub(crate) fn body<'t>(&mut self, body: impl Into<Option<&'t Body>>) -> &mut Self {
        let body = body.into();
        self.bytes(body.map(|body| &body.bytes[..])).text(body.map(Body::column))
    }

    pub(crate) fn cause(&mut self, cause: Option<&CausalRef>) -> &mut Self {
        let text = cause.map(CausalRef::canonical);
        self.bytes(text.as_ref().map(|text| text.as_bytes()))
    }
}

// The header of a field: its type and its length.
fn head(ty: &Type, length: usize) -> [u8; 8] {
    let mut head = [0; 8];
    head[..4].copy_from_slice(&ty.oid().to_be_bytes());
    head[4..].copy_from_slice(&(length as i32).to_be_bytes());
    head
}
