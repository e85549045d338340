/** How far a tool is, in bytes. */
export interface ToolProgress {
  completed: number
  total: number
}

const FACTORS: Record<string, number> = { '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12 }
const bytes = (number: string, unit: string) => Math.round(Number(number) * FACTORS[unit]!)

/**
 * Reads a line of the converter's progress bar, such as
 * `Writing:  71%|███████   | 2.89M/4.07M [00:00<00:00, 44.4Mbyte/s]`; undefined for any other line.
 */
export function converterProgress(line: string): ToolProgress | undefined {
  const match = /\bWriting:\s+\d+%\|.*\|\s*([\d.]+)([kMGT]?)\/([\d.]+)([kMGT]?) \[/.exec(line)
  if (!match) return undefined
  const total = bytes(match[3]!, match[4]!)
  return total > 0 ? { completed: Math.min(bytes(match[1]!, match[2]!), total), total } : undefined
}

const TYPE_BYTES: Record<string, number> = { f32: 4, f16: 2, bf16: 2 }

/**
 * Follows llama-quantize through its lines, one before each tensor, such as
 * `[   2/  29] token_embd.weight - [   256,   1024,      1,      1], type =    f16, converting to q6_K .. size = …`.
 * Tensors count by their bytes: the embedding alone may be a fifth of a model.
 * @param total bytes of the file that is quantized
 */
export function quantizeProgress(total: number): (line: string) => ToolProgress | undefined {
  let before = 0
  let current = 0
  return line => {
    const match = /^\[\s*\d+\/\s*\d+\]\s+\S+\s+- \[([\d, ]+)\], type =\s*(\w+)/.exec(line)
    if (!match) return undefined
    before += current
    current = match[1]!.split(',').reduce((product, length) => product * Number(length), TYPE_BYTES[match[2]!] ?? 0)
    return { completed: Math.min(before, total), total }
  }
}
