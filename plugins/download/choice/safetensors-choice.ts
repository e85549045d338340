import type { HubFile, PlannedDownload } from '../../../core/contracts/downloads.ts'
import { CorralError } from '../../../core/errors.ts'
import { labelFromFileName } from '../../../core/models/gguf-file-name.ts'
import { describesSafetensors } from '../../../core/models/safetensors-layout.ts'
import { storedName } from '../../../core/models/stored-name.ts'
import { formatMemory } from '../../../core/system/bytes.ts'
import { byPath, type Choice, type ChoiceRequest, listed, planned, sizeOf, withoutNameTwins } from './choice.ts'
import { budgetOf, memoryFor, requiredMemory } from './memory.ts'
import { onlySafetensors, unreadableWeights } from './refusals.ts'
import { safetensorsLabel, safetensorsOffer } from './safetensors-offer.ts'

const TEXT = /^(?:readme\.md|licen[cs]e(?:\.(?:md|txt))?|notice(?:\.(?:md|txt))?)$/i
/** Says that it was made for Apple's MLX with fewer bits: tensors that only MLX reads. */
const MLX_NAME = /^mlx-community\/.*\b\d(?:[._]\d+)?-?bit\b|[-_.]mlx[-_.]?(?:\d|q\d|int\d|mxfp\d).*$/i

/** The files of a folder's SafeTensors model. @throws CorralError as `chooseFiles` */
export function chooseSafetensors(request: ChoiceRequest, folder: string): Choice {
  const { id, files, config } = request
  const label = folder !== '' ? folder.slice(0, -1) : config === undefined ? undefined : safetensorsLabel(config)
  refuseOtherTypes(request, folder, label)
  refuseMlx(id, config)
  const { weights, missing } = safetensorsOffer(id, files, folder, request.weightsInIndex)
  if (missing.length > 0) {
    throw new CorralError(
      'unsupported_capability',
      `${id} is not a whole model: it lacks ${listed(missing)}. Look for another repository of this model.`,
      { param: 'model' }
    )
  }
  const inStore = (file: HubFile, role: PlannedDownload['role'], name = file.path.slice(folder.length)) =>
    planned(file, role, name.split('/').map(storedName).join('/'))
  const others = [...files].sort(byPath).filter(file => {
    const name = file.path.slice(folder.length)
    if (!file.path.startsWith(folder) || weights.includes(file) || name === 'adapter_config.json') return false
    return describesSafetensors(name) || TEXT.test(name)
  })
  const chosen = withoutNameTwins([
    ...weights.map(file =>
      inStore(file, 'model', convertibleName(request, file.path.slice(folder.length), weights.length))
    ),
    ...others.map(file => inStore(file, 'other'))
  ])
  const bytes = sizeOf(weights)
  // Loaded as 16-bit floats, unless another type is asked for.
  const factor = label === 'F32' ? 0.5 : label === 'FP8' ? 2 : 1
  const memory = memoryFor(requiredMemory(bytes * factor, 0), budgetOf(request.memory))
  const warnings = ['These are SafeTensors weights: they are converted to GGUF when the model is loaded first.']
  if (!memory.fits) {
    warnings.push(
      `In 16 bits the model needs about ${formatMemory(memory.required)} of memory, but ${formatMemory(memory.available)} can be used on ` +
        'this machine. Load it with a smaller type, such as "dtype": "q4_k_m".'
    )
  }
  return {
    format: 'safetensors',
    label,
    files: chosen,
    size: sizeOf(chosen),
    reason:
      request.file || request.variant
        ? 'These weights were asked for.'
        : 'The repository has SafeTensors weights only.',
    choices: [],
    memory,
    warnings
  }
}

/** Weights under another name get the one that the converter looks for; an index names them as they are. */
function convertibleName({ weightsInIndex }: ChoiceRequest, name: string, count: number): string {
  if (weightsInIndex || name.startsWith('model')) return name
  return count === 1 ? 'model.safetensors' : name.replace(/^.*(?=-\d{5}-of-\d{5}\.safetensors$)/, 'model')
}

/** A tag on a repository of SafeTensors weights can only be the type that they have. */
function refuseOtherTypes({ id, variant }: ChoiceRequest, folder: string, label: string | undefined): void {
  const wanted = variant === undefined || folder !== '' ? undefined : labelFromFileName(variant)
  if (variant === undefined || wanted === undefined || !/^[\w-]+$/.test(variant)) return
  const isType = /^(?:B?F16|F32)$/.test(wanted)
  if (!isType || (label !== undefined && label !== wanted)) throw onlySafetensors(id, wanted, label)
}

function refuseMlx(id: string, config: unknown): void {
  const { quantization, quantization_config: other } = (config ?? {}) as Record<string, unknown>
  const isMlx =
    config === undefined
      ? MLX_NAME.test(id)
      : typeof quantization === 'object' &&
        quantization !== null &&
        'bits' in quantization &&
        !(typeof other === 'object' && other !== null && 'quant_method' in other)
  if (isMlx) throw unreadableWeights(id, "has weights quantized for Apple's MLX, which llama.cpp cannot convert")
}
