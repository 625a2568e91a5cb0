//! What the OpenAPI document says about a route of a set: its parameters, its body and its statuses.

use axum::http::Method;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathItem,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::{
    ContentBuilder, Ref, RefOr, Required, ResponseBuilder, ResponsesBuilder, Schema,
};
use utoipa::{PartialSchema, ToSchema};

const JSON: &str = "application/json";

/// The description of a route.
#[derive(Clone)]
pub(crate) struct RouteDoc {
    id: Option<&'static str>,
    summary: Option<&'static str>,
    status: u16,
    parameters: Vec<Parameter>,
    body: Option<RequestBody>,
    pub(crate) schemas: Vec<(String, RefOr<Schema>)>,
}

impl Default for RouteDoc {
    fn default() -> Self {
        let (parameters, schemas) = (Vec::new(), Vec::new());
        Self { id: None, summary: None, status: 200, parameters, body: None, schemas }
    }
}

#[cfg_attr(
    not(all(feature = "agents", feature = "contracts")),
    allow(dead_code, reason = "each set of routes uses a part of it")
)]
impl RouteDoc {
    /// A route that answers 200. The id is unique in the document.
    pub(crate) fn new(id: &'static str, summary: &'static str) -> Self {
        Self { id: Some(id), summary: Some(summary), ..Self::default() }
    }

    /// The status of a success.
    pub(crate) fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// An optional text in the query.
    pub(crate) fn query(self, name: &str, description: &str) -> Self {
        self.parameter::<String>(ParameterIn::Query, name, description, Required::False)
    }

    /// An optional number in the query.
    pub(crate) fn count(self, name: &str, description: &str) -> Self {
        self.parameter::<u32>(ParameterIn::Query, name, description, Required::False)
    }

    /// A header that the request must have.
    pub(crate) fn header(self, name: &str, description: &str) -> Self {
        self.parameter::<String>(ParameterIn::Header, name, description, Required::True)
    }

    fn parameter<T: PartialSchema>(
        mut self,
        place: ParameterIn,
        name: &str,
        description: &str,
        required: Required,
    ) -> Self {
        let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(required);
        let description = Some(description).filter(|text| !text.is_empty());
        self.parameters.push(parameter.description(description).schema(Some(T::schema())).build());
        self
    }

    /// A body of this type.
    pub(crate) fn body<T: ToSchema>(mut self) -> Self {
        let name = T::name().into_owned();
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(&name))).build();
        let body = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
        self.body = Some(body.build());
        T::schemas(&mut self.schemas);
        self.schemas.push((name, T::schema()));
        self
    }

    /// A body that the document does not describe further.
    pub(crate) fn any_body(mut self, description: &str) -> Self {
        let content = ContentBuilder::new().schema(Some(serde_json::Value::schema())).build();
        let body = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
        self.body = Some(body.description(Some(description)).build());
        self
    }

    /// The part of the document. Every part of the path in braces is a parameter.
    pub(crate) fn path_item(&self, tag: &str, method: HttpMethod, path: &str) -> PathItem {
        let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let of_path = names.map(|name| {
            ParameterBuilder::new()
                .name(name.trim_start_matches('*'))
                .parameter_in(ParameterIn::Path)
                .required(Required::True)
                .schema(Some(String::schema()))
                .build()
        });
        let parameters: Vec<Parameter> = of_path.chain(self.parameters.iter().cloned()).collect();
        let any = ContentBuilder::new().schema(Some(serde_json::Value::schema())).build();
        let failure = ContentBuilder::new().schema(Some(Ref::from_schema_name("Failure"))).build();
        let success = ResponseBuilder::new().description("").content(JSON, any).build();
        let responses = ResponsesBuilder::new()
            .response(self.status.to_string(), success)
            .response("default", ResponseBuilder::new().content(JSON, failure).build());
        let operation = OperationBuilder::new()
            .tag(tag)
            .operation_id(self.id)
            .summary(self.summary)
            .parameters(Some(parameters))
            .request_body(self.body.clone())
            .responses(responses.build());
        PathItem::new(method, operation.build())
    }
}

/// The method in the words of the document; none if it has no word for it.
pub(crate) fn http_method(method: &Method) -> Option<HttpMethod> {
    Some(match *method {
        Method::GET => HttpMethod::Get,
        Method::POST => HttpMethod::Post,
        Method::PUT => HttpMethod::Put,
        Method::DELETE => HttpMethod::Delete,
        Method::PATCH => HttpMethod::Patch,
        _ => return None,
    })
}
