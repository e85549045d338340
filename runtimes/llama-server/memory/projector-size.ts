const F32 = 4

/**
 * Bytes that a projector takes to look at an image, by the keys of its file: the scores of attention between all
 * patches of an image and the widest step of a layer (llama.cpp's tools/mtmd/clip.cpp without flash attention, which
 * not all of them have). Without keys, as much again as its weights.
 */
export function projectorCompute(keys: Readonly<Record<string, unknown>> | undefined, weights: number): number {
  const number = (name: string) => {
    const value = keys?.[`clip.vision.${name}`]
    return typeof value === 'number' ? value : 0
  }
  const side = number('patch_size') > 0 ? number('image_size') / number('patch_size') : 0
  const patches = side * side
  const widest = 3 * number('feed_forward_length') + 5 * number('embedding_length')
  if (patches === 0 || widest === 0) return weights
  return F32 * patches * (widest + patches * number('attention.head_count'))
}
