/** End of the name of the variant with a model's other revision during a rollout. */
const ENDING = '-rollout'

/** Returns the variant that has the revision of a model that is not in use. @param name of a variant, or its key or label */
export const otherRevision = (name: string): string => name + ENDING

export const isOtherRevision = (name: string): boolean => name.endsWith(ENDING)
