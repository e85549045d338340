import { CorralError } from '../../../core/errors.ts'

/** How a GGUF of one type is made. */
export interface DtypePlan {
  /** The canonical name in lower case; also the name of the folder it is kept in. */
  dtype: string
  /** What the converter writes (`--outtype`). */
  outtype: string
  /** What llama-quantize then makes of it; absent where the converter's output is the result. */
  quantize?: string
  /** What the converter writes for what sees or hears. */
  projectorOuttype: string
  /** Bits a weight of the converter's output, and of the result. */
  bits: { converted: number; result: number }
}

/** Types that the converter writes by itself, with their bits a weight. */
const DIRECT: Record<string, number> = { f32: 32, f16: 16, bf16: 16, q8_0: 8.5, tq1_0: 1.7, tq2_0: 2.1 }

/** Types that llama-quantize makes, with their bits a weight; it keeps the embedding finer, hence the generous ones. */
const QUANTIZED: Record<string, number> = {
  q1_0: 1.9,
  q2_0: 3,
  q2_k: 3.5,
  iq3_s: 3.9,
  iq3_m: 4,
  q3_k_s: 3.9,
  q3_k_m: 4.3,
  q3_k_l: 4.6,
  iq4_xs: 4.6,
  iq4_nl: 4.8,
  q4_0: 4.8,
  q4_1: 5.3,
  q4_k_s: 4.9,
  q4_k_m: 5,
  mxfp4_moe: 8.5,
  q5_0: 5.7,
  q5_1: 6.1,
  q5_k_s: 5.7,
  q5_k_m: 5.8,
  q6_k: 6.7
}

const ALIASES: Record<string, string> = { q3_k: 'q3_k_m', q4_k: 'q4_k_m', q5_k: 'q5_k_m' }

/** Types so coarse that llama-quantize requires an importance matrix for them. */
const NEEDS_IMATRIX = ['iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq2_m', 'iq3_xxs', 'iq3_xs', 'q2_k_s']

/** What `dtype` may be, the common ones first. */
export const DTYPES: readonly string[] = [...Object.keys(DIRECT), ...Object.keys(QUANTIZED)]
const BITS = new Map(Object.entries({ ...DIRECT, ...QUANTIZED }))

/**
 * How a type is made of a model. Pure.
 * @param dtype in any case
 * @param ownType the type that most of the model's weights have, such as `BF16`
 * @throws CorralError `invalid_option` naming the types there are
 */
export function planDtype(dtype: string, ownType: string | undefined): DtypePlan {
  const lower = dtype.toLowerCase()
  const name = ALIASES[lower] ?? lower
  if (NEEDS_IMATRIX.includes(name)) {
    throw new CorralError(
      'invalid_option',
      `Option "dtype" cannot be ${name}: a type this coarse needs an importance matrix, which corral does not make. ` +
        'Import a GGUF of this type that was made with one, or use q2_k or iq3_s.',
      { param: 'dtype' }
    )
  }
  const result = BITS.get(name)
  if (result === undefined) {
    throw new CorralError(
      'invalid_option',
      `Option "dtype" cannot be ${JSON.stringify(dtype)}; the types are ${DTYPES.join(', ')}.`,
      { param: 'dtype' }
    )
  }
  const projectorOuttype = name === 'f32' || name === 'bf16' ? name : 'f16'
  if (Object.hasOwn(DIRECT, name)) {
    return { dtype: name, outtype: name, projectorOuttype, bits: { converted: result, result } }
  }
  // A BF16 weight may be outside the range of F16.
  const outtype = ownType?.toLowerCase() === 'bf16' ? 'bf16' : 'f16'
  return { dtype: name, outtype, quantize: name.toUpperCase(), projectorOuttype, bits: { converted: 16, result } }
}

/** Vocabulary and metadata, which the count of weights does not include. */
const OVERHEAD = 16e6
/** Norms and the like stay finer than the type says. */
const MARGIN = 1.03

/** Bytes that a conversion needs while it runs and leaves, estimated from the count of weights. Pure. */
export function diskNeed(plan: DtypePlan, parameters: number): number {
  const converted = (parameters * plan.bits.converted) / 8
  const result = plan.quantize ? (parameters * plan.bits.result) / 8 : 0
  return Math.ceil((converted + result) * MARGIN + OVERHEAD)
}
