/** Options of a slow test that rarely fails in a file of everyday tests. `npm test` without paths skips it. */
export const thorough = process.env.CORRAL_TEST_EVERYDAY ? { skip: 'thorough' } : {}
