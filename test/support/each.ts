/** Returns a field of each object. */
export const each = <Row extends Record<string, any>, Field extends keyof Row>(rows: readonly Row[], field: Field) =>
  rows.map(row => row[field])
