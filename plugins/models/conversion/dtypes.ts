import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import TYPES from './dtypes.json' with { type: 'json' }

export interface DtypePlan {
  /** The canonical name in lower case, which also names the folder. */
  dtype: string
  /** Type that the converter writes (`--outtype`). */
  outtype: string
  /** Type that llama-quantize then produces, if that step is needed. */
  quantize?: string
  projectorOuttype: string
  bits: { converted: number; result: number }
}

/** Types with their bits per weight: types of the converter, and of llama-quantize (generous estimates). */
const { direct: DIRECT, quantized: QUANTIZED } = TYPES

const ALIASES: Record<string, string> = { q3_k: 'q3_k_m', q4_k: 'q4_k_m', q5_k: 'q5_k_m' }

/** Types so coarse that llama-quantize requires an importance matrix. */
const NEEDS_IMATRIX = ['iq1_s', 'iq1_m', 'iq2_xxs', 'iq2_xs', 'iq2_s', 'iq2_m', 'iq3_xxs', 'iq3_xs', 'q2_k_s']

export const DTYPES: readonly string[] = [...Object.keys(DIRECT), ...Object.keys(QUANTIZED)]
const BITS = new Map(Object.entries({ ...DIRECT, ...QUANTIZED }))

/** @param ownType the type of most of the model's weights, for example `BF16` @throws CorralError `invalid_option` */
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
      `Option "dtype" cannot be ${JSON.stringify(dtype)}. The types are ${DTYPES.join(', ')}.`,
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

/** Vocabulary and metadata, which are not part of the weights. */
const OVERHEAD_BYTES = 16e6
/** Norms and similar tensors stay finer than the type. */
const MARGIN = 1.03

/** Estimates the bytes that a conversion needs, intermediate files included. */
export function requiredDiskBytes(plan: DtypePlan, parameters: number): number {
  const converted = (parameters * plan.bits.converted) / 8
  const result = plan.quantize ? (parameters * plan.bits.result) / 8 : 0
  return Math.ceil((converted + result) * MARGIN + OVERHEAD_BYTES)
}

/** Returns the architectures in a config.json that the converter looks up: the model's and its text model's. */
export function modelArchitectures(config: unknown): string[] {
  const sections = isObject(config) ? [config, config.text_config] : []
  return sections.flatMap(section => {
    const first: unknown =
      isObject(section) && Array.isArray(section.architectures) ? section.architectures[0] : undefined
    return typeof first === 'string' ? [first] : []
  })
}

/** Returns the architectures that llama.cpp's converter supports. Undefined if its source has no known list. */
export async function supportedArchitectures(folder: string): Promise<Set<string> | undefined> {
  const read = (...path: string[]) => readFile(join(folder, ...path), 'utf8').catch(() => '')
  const [, map = ''] = /^TEXT_MODEL_MAP\b[^{]*\{([^}]*)\}/m.exec(await read('conversion', '__init__.py')) ?? []
  const named = [...map.matchAll(/"([^"]+)":/g)].map(([, name]) => name!)
  if (named.length > 0) return new Set(named)
  // Older converters are one script in which each class registers its architectures.
  const script = await read('convert_hf_to_gguf.py')
  const registered = [...script.matchAll(/^@(?:ModelBase|Model)\.register\(([^)]*)\)/gm)]
  const names = registered.flatMap(([, list]) => [...list!.matchAll(/"([^"]+)"/g)].map(([, name]) => name!))
  return names.length > 0 ? new Set(names) : undefined
}
