"""Models around a language model: images, video and sound are turned into its tokens, and only it keeps a cache."""

from __future__ import annotations

from kvblocks.sizing.architectures.base import wrapper

wrapper(
    "aria", "aya_vision", "bagel", "bee", "cohere2_vision", "deepseek_ocr", "deepseek_ocr2", "dots_ocr",
    "eagle_2_5_vl", "ernie4_5_moe_vl", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "glm4v", "glm4v_moe",
    "glm_ocr", "granite4_vision", "granite_speech", "h2ovl_chat", "idefics3", "interns1", "internvl", "internvl_chat",
    "keye", "keye_vl1_5", "kimi_k25", "kimi_k3", "kimi_vl", "lfm2_vl", "lightonocr", "llava", "llava_next",
    "llava_next_video", "llava_onevision", "midashenglm", "minicpmo", "minicpmv", "mistral3", "molmo", "molmo2",
    "nemotron_vl", "ovis", "ovis2_5", "paddleocr_vl", "paligemma", "phi3_v", "phi4mm", "pixtral", "qwen2_audio",
    "qwen2_5_omni", "qwen2_5_vl", "qwen2_vl", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe", "qwen3_asr", "r_vl",
    "skywork_chat", "smolvlm", "step3_vl", "tarsier2", "ultravox", "video_llava", "voxtral", "vipllava",
)  # fmt: skip
