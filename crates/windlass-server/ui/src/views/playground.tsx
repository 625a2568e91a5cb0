// Tries an expression while it is typed: its problems, its result, and how the result came about.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { call } from "../api/raw";
import { useSetting } from "../app";
import type { Problem } from "../contracts";
import { compactJson, formatJson } from "../json";
import { Card, Failed } from "../parts";
import { useSettled } from "../settled";
import { type TrialInput, trialBody, underline } from "../trial";
import { useTemplates } from "./definitions";

type Trial = {
  problems: Problem[];
  paths: string[];
  type?: string;
  evaluated?: {
    result: unknown;
    isTrue: boolean;
    variables: Record<string, unknown>;
    steps: { text: string; result: boolean }[];
  };
};

/** The values to try with: this browser keeps them for all expressions of a type. */
function useSample(type: string) {
  const templates = useTemplates();
  const template = templates.data?.find((one) => one.contract.entityType === type)?.samples[0];
  const entity = useSetting(`sample.${type}`, template ? formatJson(template.document) : "{}");
  const actor = useSetting(`actor.${type}`, "");
  const context = useSetting(`context.${type}`, "");
  return { entity, actor, context };
}

function useTrial(input: TrialInput) {
  const sent = trialBody(input);
  const body = useSettled("body" in sent ? sent.body : "");
  const trial = useQuery({
    queryKey: ["trial", body],
    enabled: body !== "" && input.expression.trim() !== "",
    retry: false,
    gcTime: 0,
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => call<Trial>("/expressions/evaluate", { method: "POST", body, signal }),
  });
  return { trial, invalid: "invalid" in sent ? sent : undefined };
}

/** The part “expressions” of a definition. */
export function Playground({ type }: { type: string }) {
  const [expression, setExpression] = useState("");
  const [condition, setCondition] = useState(true);
  return (
    <Card title="Try an expression">
      <label className="condition">
        Expression{" "}
        <input
          className="mono"
          data-filter=""
          placeholder="entity.total > 1000"
          value={expression}
          onChange={(event) => setExpression(event.target.value)}
        />
      </label>
      <label>
        <input type="checkbox" checked={condition} onChange={(event) => setCondition(event.target.checked)} />{" "}
        It is a condition: the result must be true or false
      </label>
      <TryWith type={type} expression={expression} condition={condition} />
    </Card>
  );
}

/** The values to try an expression with, and the result. */
export function TryWith(props: { type: string; expression: string; condition: boolean }) {
  const { type, expression, condition } = props;
  const sample = useSample(type);
  const [entity, setEntity] = sample.entity;
  const [actor, setActor] = sample.actor;
  const [context, setContext] = sample.context;
  const { trial, invalid } = useTrial({ type, expression, condition, entity, actor, context });
  return (
    <div className="two">
      <div className="form">
        <Value name="Document" rows={8} text={entity} set={setEntity} />
        <Value name="Actor" rows={2} text={actor} set={setActor} />
        <Value name="Context" rows={2} text={context} set={setContext} />
      </div>
      <div role="status">
        {invalid && (
          <p className="bad">
            {{ entity: "The document", actor: "The actor", context: "The context" }[invalid.invalid]} is not
            JSON: {String(invalid.error instanceof Error ? invalid.error.message : invalid.error)}
          </p>
        )}
        {expression.trim() === "" ? (
          <p className="dim">Type an expression. Nothing is written.</p>
        ) : trial.error ? (
          <Failed error={trial.error} />
        ) : (
          trial.data && <Result trial={trial.data} expression={expression} />
        )}
      </div>
    </div>
  );
}

function Value(props: { name: string; rows: number; text: string; set: (text: string) => void }) {
  return (
    <label>
      {props.name} as JSON
      <textarea
        rows={props.rows}
        spellCheck={false}
        value={props.text}
        onChange={(event) => props.set(event.target.value)}
      />
    </label>
  );
}

function Result({ trial, expression }: { trial: Trial; expression: string }) {
  const { evaluated } = trial;
  return (
    <>
      {trial.problems.length > 0 && (
        <ul className="problems">
          {trial.problems.map((one) => (
            <li key={`${one.code} ${one.message}`}>
              <strong>{one.code}</strong> {one.message}
              {one.span && (
                <pre>
                  {one.expression ?? expression}
                  {"\n"}
                  {underline(one.expression ?? expression, one.span)}
                </pre>
              )}
              {one.help && <div className="dim small">{one.help}</div>}
            </li>
          ))}
        </ul>
      )}
      {evaluated && (
        <>
          <p>
            Result{" "}
            <strong className={evaluated.isTrue ? "good" : "bad"}>{compactJson(evaluated.result)}</strong>
            {trial.type && <span className="dim"> · the type says {trial.type}</span>}
          </p>
          {evaluated.steps.length > 0 && (
            <ol className="tries" aria-label="Evaluated operators">
              {evaluated.steps.map((step, index) => (
                // biome-ignore lint/suspicious/noArrayIndexKey: an expression can have the same operator twice.
                <li key={index}>
                  <code>{step.text}</code>{" "}
                  <span className={step.result ? "good" : "bad"}>{String(step.result)}</span>
                </li>
              ))}
            </ol>
          )}
          <dl className="facts">
            {Object.entries(evaluated.variables).map(([path, value]) => (
              <div key={path}>
                <dt className="mono">{path}</dt>
                <dd className="mono wrap">{compactJson(value)}</dd>
              </div>
            ))}
          </dl>
        </>
      )}
      {!evaluated && trial.problems.length === 0 && (
        <p>
          It is in order{trial.type && ` and gives ${trial.type}`}.{" "}
          <span className="dim">Reads {trial.paths.join(", ")}</span>
        </p>
      )}
    </>
  );
}
