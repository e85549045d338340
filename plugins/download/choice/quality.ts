/** Quantizations by how much of the model they keep, the worst first. */
const QUALITY = [
  ...[
    'TQ1_0',
    'IQ1_S',
    'IQ1_M',
    'Q1_0',
    'IQ2_XXS',
    'TQ2_0',
    'IQ2_XS',
    'IQ2_S',
    'IQ2_M',
    'Q2_0',
    'Q2_K_S',
    'Q2',
    'Q2_K'
  ],
  ...[
    'Q2_K_L',
    'Q2_K_XL',
    'IQ3_XXS',
    'IQ3_XS',
    'Q3_K_S',
    'IQ3_S',
    'IQ3_M',
    'Q3',
    'Q3_K',
    'Q3_K_M',
    'Q3_K_L',
    'Q3_K_XL'
  ],
  ...['IQ4_XS', 'Q4_0', 'IQ4_NL', 'Q4_1', 'NVFP4', 'MXFP4', 'MXFP4_MOE', 'Q4_K_S', 'Q4', 'Q4_K', 'Q4_K_M', 'Q4_K_L'],
  ...[
    'Q4_K_XL',
    'Q5_0',
    'Q5_K_S',
    'Q5_1',
    'Q5',
    'Q5_K',
    'Q5_K_M',
    'Q5_K_L',
    'Q5_K_XL',
    'Q6',
    'Q6_K',
    'Q6_K_L',
    'Q6_K_XL'
  ],
  ...['Q8', 'Q8_0', 'Q8_K', 'Q8_K_XL', 'F16', 'BF16', 'F32']
]
/** What a default starts at: the first of these that there is stands in for Q4_K_M. */
const STAND_INS = [
  ...['Q4_K_M', 'UD-Q4_K_M', 'UD-Q4_K_XL', 'Q4_K_XL', 'Q4_K_L', 'Q4_K', 'Q4', 'Q4_K_S', 'MXFP4', 'MXFP4_MOE', 'Q4_0'],
  ...['Q4_1', 'IQ4_XS', 'IQ4_NL']
]

/** The part of a label that most of the weights have: `UD-Q4_K_XL` is Q4_K_XL, `F16-Q5` and `Q5-F16` are Q5. */
function bulkOf(label: string): string {
  const parts = label.replace(/^UD-/, '').split('-')
  return parts.find(part => !isFloat(part)) ?? parts[0]!
}

/** Whether a label is that of weights that are not quantized. */
export function isFloat(label: string): boolean {
  return /^(?:B?F16|F32)$/.test(label)
}

/** Order of labels: more is better. Those that nobody knows follow the one they begin like. */
export function quality(label: string): number {
  const extra = (label.startsWith('UD-') ? 0.5 : 0) + (label.replace(/^UD-/, '').includes('-') ? 0.25 : 0)
  const bulk = bulkOf(label)
  const rank = QUALITY.indexOf(bulk)
  if (rank >= 0) return rank + extra
  const shorter = bulk.replace(/_[^_]*$/, '')
  return shorter === bulk ? -1 : quality(shorter) + 0.1 + extra
}

/** The place of a label among those that a default starts at, the lower the better; undefined for all others. */
export function standInRank(label: string): number | undefined {
  const exact = STAND_INS.indexOf(label)
  // A mixture follows the plain one that it is made of.
  const rank = exact >= 0 ? exact : STAND_INS.indexOf(bulkOf(label)) + 0.5
  return rank >= 0.5 || exact === 0 ? rank : undefined
}

/** Types of other engines, and repacks of old versions: llama.cpp does not load them. */
export function isForeign(label: string): boolean {
  return /_[48]_[48]$|_R[48]$|^(?:UD-)?IQ\d_K|^I2_S$/.test(label)
}
