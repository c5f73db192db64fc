// The types of Grafana that the JSON of a board is checked against: its dashboard, and the options of its panels.
import type {
  AnnotationQuery,
  Dashboard,
  FieldConfig,
  FieldConfigSource,
  GraphFieldConfig,
  Panel,
  RowPanel,
  TableFieldOptions,
  VariableModel,
} from "@grafana/schema";
import type * as heatmap from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as timeseries from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// A type as JSON has it: an enumeration of strings is one of its words.
type Json<T> = unknown extends T
  ? T
  : T extends string
    ? `${T}`
    : T extends number | boolean | null | undefined
      ? T
      : { [Name in keyof T]: Json<T[Name]> };

interface Source {
  type: "prometheus";
  uid: "${datasource}";
}

// A query as Grafana's data source for Prometheus reads it; its type is in none of the packages.
interface Query {
  refId: string;
  datasource: Source;
  expr: string;
  legendFormat: string;
  format?: "time_series" | "table" | "heatmap";
  instant?: boolean;
  range?: boolean;
}

// Likewise the members of an annotation that only that data source has.
interface Incidents extends Omit<AnnotationQuery, "datasource" | "target" | "type"> {
  datasource: Source;
  expr: string;
  titleFormat: string;
  textFormat: string;
  tagKeys: string;
  useValueForTime: boolean;
}

interface Fields<Custom> extends Omit<FieldConfigSource, "defaults"> {
  defaults: Omit<FieldConfig, "custom"> & { custom?: Partial<Custom> };
}

interface Of<Type extends string, Options, Custom = object>
  extends Omit<Panel, "type" | "options" | "fieldConfig" | "datasource" | "targets"> {
  id: number;
  type: Type;
  title: string;
  description: string;
  datasource: Source;
  options: Partial<Options>;
  fieldConfig: Fields<Custom>;
  targets: Query[];
}

type Shown =
  | Of<"timeseries", timeseries.Options, GraphFieldConfig>
  | Of<"stat", stat.Options>
  | Of<"table", table.Options, TableFieldOptions>
  | Of<"heatmap", heatmap.Options, heatmap.FieldConfig>;

type Row = Omit<RowPanel, "panels"> & { panels: Shown[] };

export type Board = Json<
  Omit<Dashboard, "panels" | "annotations" | "templating"> & {
    panels: (Shown | Row)[];
    annotations: { list: Incidents[] };
    templating: { list: Omit<VariableModel, "id">[] };
  }
>;
