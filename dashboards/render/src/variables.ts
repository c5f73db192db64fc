// Puts the values of a board's variables into titles and links, as Grafana does: $name, ${name}, ${name:format}.
import type { InterpolateFunction, ScopedVars } from "@grafana/data";

const VARIABLE = /\$(\w+)|\$\{([\w.]+)(?::(\w+))?\}/g;

export function interpolation(values: Record<string, string>): InterpolateFunction {
  return (text: string | undefined, scoped?: ScopedVars) =>
    (text ?? "").replace(VARIABLE, (whole, plain: string | undefined, braced: string | undefined) => {
      const name = plain ?? braced ?? "";
      const context = scoped?.__dataContext?.value;
      const row = context?.rowIndex ?? 0;
      if (name.startsWith("__data.fields.") && context) {
        const wanted = name.slice("__data.fields.".length);
        const field = context.frame.fields.find((one: { name: string }) => one.name === wanted);
        return field ? String(field.values[row]) : whole;
      }
      return values[name] ?? whole;
    });
}
