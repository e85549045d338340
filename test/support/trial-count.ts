const factor = Number(process.env.CORRAL_TEST_TRIALS || 1)
if (!(factor > 0)) throw new Error('CORRAL_TEST_TRIALS must be a number above 0.')

/** Number of random trials: `everyday` in `npm test`, multiplied by CORRAL_TEST_TRIALS if set. */
export const trialCount = (everyday: number) => Math.ceil(everyday * factor)
