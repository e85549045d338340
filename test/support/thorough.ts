const isEveryday = Boolean(process.env.CORRAL_TEST_EVERYDAY)

/** Options of a slow test that rarely fails in a file of everyday tests. `npm test` without paths skips it. */
export const thorough = isEveryday ? { skip: 'thorough' } : {}

/** Returns every nth item in `npm test` without paths, and otherwise all: for long tables of similar cases. */
export function sample<Item>(items: readonly Item[], nth: number, first = 0): readonly Item[] {
  return isEveryday ? items.filter((_, at) => at % nth === first % nth) : items
}
