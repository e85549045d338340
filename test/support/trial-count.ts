const factor = Number(process.env.CORRAL_TEST_TRIALS || 1)
if (!(factor > 0)) throw new Error('CORRAL_TEST_TRIALS must be a number above 0.')

/** How many random trials a test makes: `everyday` of them in `npm test`, times CORRAL_TEST_TRIALS where that is set. */
export const trialCount = (everyday: number) => Math.ceil(everyday * factor)
