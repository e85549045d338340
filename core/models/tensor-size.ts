const QK_K = 256

/** Weights in a block and bytes of a block, by the number that ggml gives the type (gguf-py's GGML_QUANT_SIZES). */
const BLOCKS: Record<number, [weights: number, bytes: number]> = {
  0: [1, 4], // F32
  1: [1, 2], // F16
  2: [32, 18], // Q4_0
  3: [32, 20], // Q4_1
  6: [32, 22], // Q5_0
  7: [32, 24], // Q5_1
  8: [32, 34], // Q8_0
  9: [32, 36], // Q8_1
  10: [QK_K, 84], // Q2_K
  11: [QK_K, 110], // Q3_K
  12: [QK_K, 144], // Q4_K
  13: [QK_K, 176], // Q5_K
  14: [QK_K, 210], // Q6_K
  15: [QK_K, 292], // Q8_K
  16: [QK_K, 66], // IQ2_XXS
  17: [QK_K, 74], // IQ2_XS
  18: [QK_K, 98], // IQ3_XXS
  19: [QK_K, 50], // IQ1_S
  20: [32, 18], // IQ4_NL
  21: [QK_K, 110], // IQ3_S
  22: [QK_K, 82], // IQ2_S
  23: [QK_K, 136], // IQ4_XS
  24: [1, 1], // I8
  25: [1, 2], // I16
  26: [1, 4], // I32
  27: [1, 8], // I64
  28: [1, 8], // F64
  29: [QK_K, 56], // IQ1_M
  30: [1, 2], // BF16
  34: [QK_K, 54], // TQ1_0
  35: [QK_K, 66], // TQ2_0
  39: [32, 17], // MXFP4
  40: [64, 36], // NVFP4
  41: [128, 18], // Q1_0
  42: [64, 18] // Q2_0
}

/** Bytes of a tensor's data; 0 for a type that is newer than this table, of which nothing can be said. */
export function tensorSize(type: number, weights: number): number {
  const block = BLOCKS[type]
  return block ? Math.ceil(weights / block[0]) * block[1] : 0
}
