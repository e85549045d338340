/** Files of a SafeTensors folder, besides the weights, that the converter reads. */
const DESCRIPTION =
  /^(.*config.*\.json|params\.json|chat_template\.json|tokenizer.*\.(json|model|txt)|tokenizer\.model\.v\w+|special_tokens_map\.json|added_tokens\.json|tekken\.json|vocab\.(json|txt)|merges\.txt|.*\.model|.*\.tiktoken|.*\.jinja|modules\.json|model\.safetensors\.index\.json)$/i
/** Pooling and dense layers of sentence-transformers. */
const MODULE_FILE = /^\d+_\w+\/(config\.json|model\.safetensors)$/
const TEMPLATE_FILE = /^additional_chat_templates\/[^/]+\.jinja$/
const TOKENIZER = /^(tokenizer\.json|tokenizer\.model|tekken\.json|vocab\.(json|txt)|.*\.model|.*\.tiktoken)$/i

/** Whether a file beside SafeTensors weights is needed to convert or run them. @param path in the model's folder */
export function describesSafetensors(path: string): boolean {
  return MODULE_FILE.test(path) || TEMPLATE_FILE.test(path) || (!path.includes('/') && DESCRIPTION.test(path))
}

/** Whether a file contains a tokenizer. @param path in the model's folder */
export function isTokenizer(path: string): boolean {
  return !path.includes('/') && TOKENIZER.test(path)
}

/** Converts the name that transformers or the file format uses for the weights' type to a label. */
export function dtypeLabel(dtype: string | undefined): string {
  const name = (dtype ?? '').toLowerCase().replace(/^torch\./, '')
  if (name === 'bfloat16' || name === 'bf16') return 'BF16'
  if (name === 'float16' || name === 'half' || name === 'f16') return 'F16'
  if (name === 'float32' || name === 'float' || name === 'f32') return 'F32'
  if (/^(float8|f8)/.test(name)) return 'FP8'
  return 'SAFETENSORS'
}
